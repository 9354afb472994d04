//! The binary: its commands, the configuration file, the terminal, the load generator.

mod audit;
mod backup;
mod cli;
mod config;
mod health;
mod load;
mod service_manager;
mod sessions;
mod terminal;
mod tools_import;
