//! The command `estafette`.

use std::process::ExitCode;

fn main() -> ExitCode {
    estafette_cli::run(std::env::args_os()).into()
}
