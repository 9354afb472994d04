//! The `callsheet` binary: everything is in [`callsheet::cli`].

/// The host allocates and frees many small blocks on every thread; mimalloc does this faster than the
/// system's allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    callsheet_cli::main()
}
