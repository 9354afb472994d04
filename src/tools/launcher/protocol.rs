//! The messages between the host and a launcher, over a socket that is the launcher's standard input.
//!
//! The host sends the length of a [`LaunchRequest`] together with the three standard streams of the
//! program, then the launch request as JSON, then one byte for each later request ([`TERMINATE`] is the only
//! one; other bytes are ignored). The launcher sends [`LauncherMessage`]s, one a line.
//!
//! The launcher sends the same launch request to the process that restricts itself (see `exec.rs`), with a pipe after
//! the streams. In it that process answers with `SandboxFailed`, with `StartFailed`, or with `Started` and, if the
//! execution fails, `StartFailed`. The execution of the program closes the pipe.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use serde::{Deserialize, Serialize};

use callsheet_values::config::SandboxLevel;

/// The byte that requests `SIGTERM` for the program and its descendants.
pub(super) const TERMINATE: u8 = b'T';

/// The program to start. Paths are `OsString`, because a `PathBuf` that is not UTF-8 has no JSON form.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct LaunchRequest {
    pub(super) program: OsString,
    pub(super) arguments: Vec<OsString>,
    pub(super) cwd: OsString,
    pub(super) env: BTreeMap<String, String>,
    pub(super) sandbox: Sandbox,
    /// In bytes.
    pub(super) max_memory: Option<u64>,
    pub(super) max_processes: Option<u32>,
    /// True if the host has disabled huge pages for itself: the launcher enables them again for the program.
    pub(super) enables_huge_pages: bool,
}

/// The sandbox of a program.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Sandbox {
    pub(super) level: SandboxLevel,
    /// Paths that the program may read besides the working directory, and read and write.
    pub(super) read_paths: Vec<OsString>,
    pub(super) write_paths: Vec<OsString>,
    /// The host's own files and directories, which it never reads.
    pub(super) host_files: Vec<OsString>,
    /// With `strict`: the command of bubblewrap, to which the program is appended.
    pub(super) bubblewrap: Vec<OsString>,
}

/// A message about the program, of the launcher or of the process that restricts itself.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum LauncherMessage {
    /// It runs. The process that restricts itself sends this just before it executes the program; a
    /// `StartFailed` may follow.
    Started,
    /// It did not start, because its sandbox could not be set up.
    SandboxFailed(String),
    /// It did not start.
    StartFailed(String),
    /// It has more processes than allowed, and is killed now.
    TooManyProcesses,
    /// It ended.
    Exited {
        /// The exit status, unless a signal ended it.
        code: Option<i32>,
        /// The number of the signal that ended it.
        signal: Option<i32>,
    },
}

/// Returns the message that the program did not start because of this error.
pub(super) fn start_failed(error: impl Into<io::Error>) -> LauncherMessage {
    LauncherMessage::StartFailed(error.into().to_string())
}

/// The number of descriptors that are sent at most.
const DESCRIPTORS_MAX: usize = 4;

/// Sends the length of the request, and with it the standard streams of the program.
pub(super) fn send_streams(
    socket: &UnixStream,
    length: usize,
    streams: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let length = u32::try_from(length).map_err(io::Error::other)?.to_be_bytes();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !ancillary.push(SendAncillaryMessage::ScmRights(streams)) {
        return Err(io::ErrorKind::OutOfMemory.into());
    }
    let parts = [IoSlice::new(&length)];
    rustix::net::sendmsg(socket, &parts, &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives the request and the standard streams of the program. The streams are standard input, output and
/// error, in this order.
pub(super) fn receive_request<const STREAMS: usize>(
    mut socket: &UnixStream,
) -> io::Result<(LaunchRequest, [OwnedFd; STREAMS])> {
    let mut length = [0; 4];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut length)];
    let received =
        rustix::net::recvmsg(socket, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    if received.bytes != 4 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let mut streams = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            streams.extend(descriptors);
        }
    }
    let streams = streams.try_into().map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
    let length = usize::try_from(u32::from_be_bytes(length)).map_err(io::Error::other)?;
    let mut request = vec![0; length];
    socket.read_exact(&mut request)?;
    Ok((serde_json::from_slice(&request)?, streams))
}

/// Sends a message. Ignores errors: the receiver may have ended.
pub(super) fn send_message(mut receiver: impl Write, message: &LauncherMessage) {
    if let Ok(mut line) = serde_json::to_vec(message) {
        line.push(b'\n');
        let _ = receiver.write_all(&line);
    }
}
