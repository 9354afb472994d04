//! The `callsheet` binary: everything is in [`callsheet::cli`].

fn main() -> std::process::ExitCode {
    callsheet::cli::main()
}
