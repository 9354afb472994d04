//! The `callsheet` binary: everything is in [`callsheet::cli`].

/// Sessions come and go on every thread, and each call is an actor with its queues: many small
/// blocks, which this allocator hands out and takes back at less cost than the system's.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    callsheet::cli::main()
}
