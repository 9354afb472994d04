//! What a host tells the service manager that has started it.

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::process::Stdio;
use std::time::Duration;

use crate::cli::{Folder, signal};

#[test]
fn a_host_notifies_its_service_manager_until_it_ends() {
    let folder = Folder::new("notify");
    let path = folder.0.join("n").display().to_string();
    let name = format!("callsheet-test-{}", std::process::id());
    for (address, socket) in [
        (format!("@{name}"), SocketAddr::from_abstract_name(&name).unwrap()),
        (path.clone(), SocketAddr::from_pathname(&path).unwrap()),
    ] {
        let manager = UnixDatagram::bind_addr(&socket).unwrap();
        manager.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let receive = || {
            let mut state = [0; 256];
            let length = manager.recv(&mut state).unwrap();
            String::from_utf8(state[..length].to_vec()).unwrap()
        };
        let mut command = folder.command(&["serve", "--listen", "127.0.0.1:0"]);
        command.env("NOTIFY_SOCKET", &address).env("WATCHDOG_USEC", "200000");
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let ready = receive();
        assert!(ready.starts_with("READY=1\nSTATUS=listening on http://127.0.0.1:"), "{ready}");
        assert_eq!([receive(), receive()], ["WATCHDOG=1"; 2]);
        signal(&child, "TERM");
        let next = std::iter::repeat_with(receive).find(|state| state != "WATCHDOG=1");
        assert_eq!(next.as_deref(), Some("STOPPING=1"));
        assert_eq!(child.wait().unwrap().code(), Some(0));
    }
}

#[test]
fn a_host_runs_without_a_service_manager_that_listens() {
    let folder = Folder::new("notify-nobody");
    let mut command = folder.command(&["serve", "--listen", "127.0.0.1:0"]);
    command.env("NOTIFY_SOCKET", folder.0.join("nobody")).env("WATCHDOG_USEC", "200000");
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let stderr = std::io::BufReader::new(child.stderr.take().unwrap());
    let mut lines = std::io::BufRead::lines(stderr).map(Result::unwrap);
    assert!(lines.any(|line| line.contains("NOTIFY_SOCKET") && line.contains("No such file")));
    signal(&child, "TERM");
    assert!(child.wait().unwrap().success());
}
