//! The files of `deploy/`: the unit of systemd, the image, and the services beside a host. What needs Docker or a
//! running systemd is not checked.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(file: &str) -> String {
    fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

fn yaml(file: &str) -> Value {
    yaml_serde::from_str(&read(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// Returns an empty folder for a test.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("deploy-{name}"));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// Runs the binary in an empty folder, with the token that an address for all needs.
fn callsheet(name: &str, arguments: &[String]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_callsheet"));
    command.args(arguments).env("CALLSHEET_TOKEN", "0123456789abcdef");
    command.current_dir(folder(name)).output().unwrap()
}

/// Checks a command `callsheet serve ...` with the configuration of `compose.yml`.
fn check_serve(name: &str, mut words: Vec<String>) {
    let config = root().join("deploy/callsheet.toml").display().to_string();
    match words.iter().position(|word| word == "--config") {
        Some(flag) => words[flag + 1] = config,
        None => words.extend(["--config".to_owned(), config]),
    }
    words.push("--check".to_owned());
    let output = callsheet(name, &words);
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn systemd_accepts_the_unit() {
    let unit = read("deploy/callsheet.service");
    let started = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
    let (program, arguments) = started.split_once(' ').unwrap();
    check_serve("unit-command", arguments.split(' ').map(str::to_owned).collect());
    let copy = folder("unit").join("callsheet.service");
    fs::write(&copy, unit.replace(program, env!("CARGO_BIN_EXE_callsheet"))).unwrap();
    match Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&copy).output() {
        Err(error) => eprintln!("skipped: systemd-analyze does not start: {error}"),
        Ok(output) => {
            let problems = String::from_utf8_lossy(&output.stderr);
            let is_about_unit = problems.contains("callsheet.service");
            assert!(output.status.success() && !is_about_unit, "{problems}");
        }
    }
}

/// Returns the list of words after an instruction of a Containerfile.
fn words(file: &str, instruction: &str) -> Vec<String> {
    let of_instruction = |line: &&str| line.starts_with(instruction);
    let line = file.lines().find(of_instruction).unwrap_or_else(|| panic!("no {instruction}"));
    serde_json::from_str(&line[line.find('[').unwrap()..]).unwrap()
}

#[test]
fn the_image_runs_commands_of_the_binary_as_a_user_that_is_not_root() {
    let file = read("deploy/Containerfile");
    let manifest: toml::Table = read("Cargo.toml").parse().unwrap();
    let rust = manifest["workspace"]["package"]["rust-version"].as_str().unwrap();
    assert!(file.contains(&format!("/rust:{rust}-")), "it is not built with Rust {rust}");
    assert!(file.contains(" --profile dist ") && manifest["profile"].get("dist").is_some());
    assert_eq!(words(&file, "ENTRYPOINT"), ["callsheet"]);
    check_serve("image-command", words(&file, "CMD"));
    let probe = words(&file, "HEALTHCHECK");
    assert_eq!(probe[0], "callsheet");
    // Another host may listen on this machine.
    let status = callsheet("image-probe", &probe[1..]).status.code();
    assert!(matches!(status, Some(0 | 1)), "{probe:?}: {status:?}");
    let users: Vec<&str> = file.lines().filter_map(|line| line.strip_prefix("USER ")).collect();
    assert_eq!(users, ["10001:10001"]);
}

#[test]
fn the_composed_services_mount_files_of_the_repository() {
    let compose = yaml("deploy/compose.yml");
    let services = compose["services"].as_object().unwrap();
    assert_eq!(services.keys().collect::<Vec<_>>(), ["callsheet", "grafana", "prometheus"]);
    let host = &services["callsheet"];
    let context = root().join("deploy").join(host["build"]["context"].as_str().unwrap());
    assert!(context.join(host["build"]["dockerfile"].as_str().unwrap()).is_file());
    assert_eq!((&host["read_only"], &host["cap_drop"]), (&json!(true), &json!(["ALL"])));
    let (mut files, mut volumes) = (BTreeSet::new(), BTreeSet::new());
    for mount in services.values().flat_map(|service| service["volumes"].as_array().unwrap()) {
        let (source, target) = mount.as_str().unwrap().split_once(':').unwrap();
        assert!(target.starts_with('/'), "{mount}");
        match source.starts_with('.') {
            true => drop(files.insert(source)),
            false => drop(volumes.insert(source)),
        }
    }
    for file in &files {
        assert!(root().join("deploy").join(file).exists(), "{file} is mounted");
    }
    let dashboards = ["../dashboards", "../dashboards/callsheet.rules.yml"];
    assert!(dashboards.iter().all(|file| files.contains(file)), "{files:?}");
    let declared = compose["volumes"].as_object().unwrap().keys().map(String::as_str);
    assert_eq!(declared.collect::<BTreeSet<_>>(), volumes);
}

#[test]
fn the_composed_grafana_sets_the_variables_of_its_configuration() {
    let compose = yaml("deploy/compose.yml");
    let set = compose["services"]["grafana"]["environment"].as_object().unwrap();
    for file in ["dashboards/callsheet.yml", "datasources/callsheet.yml"] {
        let text = read(&format!("dashboards/grafana/provisioning/{file}"));
        let (_, rest) = text.split_once("${").unwrap();
        let (variable, _) = rest.split_once('}').unwrap();
        assert!(set.contains_key(variable), "{variable}");
    }
}

#[test]
fn the_composed_prometheus_differs_from_the_shipped_one_in_the_host_only() {
    let mut shipped = yaml("dashboards/prometheus.yml");
    let mut composed = yaml("deploy/prometheus.yml");
    assert_eq!(
        composed["scrape_configs"][0]["authorization"].take(),
        json!({"credentials_file": "/run/secrets/callsheet-token"})
    );
    let job = shipped["scrape_configs"][0].as_object_mut().unwrap();
    job.insert("authorization".to_owned(), Value::Null);
    job["static_configs"][0]["targets"] = json!(["callsheet:7700"]);
    assert_eq!(composed, shipped);
    // The host accepts requests that name it so.
    let config: toml::Table = read("deploy/callsheet.toml").parse().unwrap();
    assert_eq!(config["host"]["allowed_hosts"], toml::Value::from(vec!["callsheet"]));
}
