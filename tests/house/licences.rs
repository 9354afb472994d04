//! Checks that every dependency has a licence that `deny.toml` allows.

use std::process::Command;

use spdx::{Expression, ParseMode};

#[test]
fn every_dependency_has_an_allowed_licence() {
    let root = env!("CARGO_MANIFEST_DIR");
    let deny = std::fs::read_to_string(format!("{root}/deny.toml")).unwrap();
    let deny: toml::Table = deny.parse().unwrap();
    let allowed: Vec<&str> = deny["licenses"]["allow"]
        .as_array()
        .unwrap()
        .iter()
        .map(|licence| licence.as_str().unwrap())
        .collect();
    // A build downloads only the packages of its own platform.
    let host = Command::new("rustc").args(["--print", "host-tuple"]).output().unwrap();
    let host = String::from_utf8(host.stdout).unwrap();
    let metadata = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked", "--offline", "--all-features"])
        .args(["--filter-platform", host.trim()])
        .current_dir(root)
        .output()
        .unwrap();
    assert!(metadata.status.success(), "{}", String::from_utf8_lossy(&metadata.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&metadata.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    assert!(packages.len() > 100, "the dependencies were found");
    for package in packages {
        let name = package["name"].as_str().unwrap();
        let licence = package["license"].as_str().unwrap_or("none");
        let expression = Expression::parse_mode(licence, ParseMode::LAX)
            .unwrap_or_else(|error| panic!("{name}: {licence:?}: {error}"));
        let fits = expression.evaluate(|wanted| allowed.contains(&wanted.to_string().as_str()));
        assert!(fits, "{name} has the licence {licence:?}, which deny.toml does not allow");
    }
}
