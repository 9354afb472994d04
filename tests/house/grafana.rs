//! Checks the dashboards against Grafana's published types (npm's `@grafana/schema`) with the
//! TypeScript compiler. `tests/grafana/dashboard.ts` has further checks.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::panels::dashboards;

#[test]
fn the_dashboards_match_grafanas_types() {
    let project = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/grafana"));
    let compiler = "node_modules/typescript/bin/tsc";
    let node = Command::new("node").arg("--version").output();
    if node.is_err() || !project.join(compiler).exists() {
        let missing = "node or its packages are missing: npm ci --prefix tests/grafana";
        let ci = std::env::var("CI").is_ok_and(|value| value == "true");
        assert!(!ci, "{missing}");
        eprintln!("skipped: {missing}");
        return;
    }
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("grafana");
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).unwrap();
    for file in ["tsconfig.json", "dashboard.ts"] {
        fs::copy(project.join(file), dir.join(file)).unwrap();
    }
    std::os::unix::fs::symlink(project.join("node_modules"), dir.join("node_modules")).unwrap();
    let all = dashboards();
    assert_eq!(all.len(), 3);
    for dashboard in all {
        let json = fs::read_to_string(&dashboard.file).unwrap();
        // As a literal, so that unknown fields are errors.
        let text = format!(
            "import type {{ Dashboard }} from \"./dashboard.ts\";\n\
             export const dashboard: Dashboard = {json};\n"
        );
        fs::write(dir.join(format!("{}.ts", dashboard.name())), text).unwrap();
    }
    let checked = Command::new("node").arg(compiler).current_dir(&dir).output().unwrap();
    let output = String::from_utf8_lossy(&checked.stdout);
    assert!(checked.status.success(), "{output}{}", String::from_utf8_lossy(&checked.stderr));
}
