//! Checks that SQLite does not offer: missing pages, and copies of deleted rows.
//!
//! The formats are documented in <https://sqlite.org/fileformat2.html>: tree pages in section 1.6,
//! the write-ahead log in section 4.1.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::Path;

use memchr::memmem;

/// The kinds of tree pages.
const INDEX_INTERIOR: u8 = 2;
const INDEX_LEAF: u8 = 10;
const TABLE_LEAF: u8 = 13;

/// Returns whether pages of the database are neither in its file nor in its log, because the file
/// was truncated. SQLite checks the size of the file only if there is no log.
pub(super) fn are_missing(
    database: &Path,
    log: &Path,
    pages: u64,
    page_size: u64,
) -> io::Result<bool> {
    // The order matters: a page that leaves the log in between is then in the file.
    let in_log = pages_in_log(log, page_size)?;
    let in_file = std::fs::metadata(database)?.len() / page_size.max(1);
    Ok((in_file + 1..=pages).any(|page| !in_log.contains(&page)))
}

/// Returns the pages in a write-ahead log.
fn pages_in_log(log: &Path, page_size: u64) -> io::Result<HashSet<u64>> {
    let mut pages = HashSet::new();
    let mut log = match File::open(log) {
        Ok(log) => BufReader::new(log),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(pages),
        Err(error) => return Err(error),
    };
    let (mut header, mut frame) = ([0; 32], [0; 24]);
    if !fill(&mut log, &mut header)? {
        return Ok(pages);
    }
    let skip = i64::try_from(page_size).unwrap_or(i64::MAX);
    // Frames of an older log, with another salt, may follow.
    while fill(&mut log, &mut frame)? && frame[8..16] == header[16..24] {
        let number = [frame[0], frame[1], frame[2], frame[3]];
        pages.insert(u64::from(u32::from_be_bytes(number)));
        log.seek_relative(skip)?;
    }
    Ok(pages)
}

/// Maximum number of pages of a file. From here on, the first byte of an overflow page, which is the high
/// byte of a page number, can equal the kind of a tree page. With pages of 4 KiB this is 128 GiB.
const PAGES_MAX: u64 = 1 << 25;

/// Returns the numbers of the pages that contain copies of deleted rows, or one of `texts`.
///
/// `secure_delete` overwrites deleted rows. But when SQLite merges pages, it moves other rows and
/// may leave their old bytes behind (`rebuildPage` in sqlite3.c). If those rows are deleted later,
/// only their current bytes are overwritten. So the unused middle of each table leaf must be zero.
/// Index pages keep bytes of live rows there when they are split, so an index page counts only if its
/// unused bytes contain one of the texts.
pub(super) fn with_copies(
    database: &mut File,
    page_size: usize,
    texts: &[&str],
) -> io::Result<Vec<u64>> {
    let texts: Vec<_> = texts.iter().map(|text| memmem::Finder::new(text.as_bytes())).collect();
    let mut database = BufReader::with_capacity(64 * page_size.max(1), database);
    let mut page = vec![0; page_size];
    // The first page has no records, and another header.
    database.seek(SeekFrom::Start(page_size as u64))?;
    let mut number = 1;
    let mut found = Vec::new();
    while fill(&mut database, &mut page)? {
        number += 1;
        let unused = page.get(unused(&page)).unwrap_or_default();
        let copies = match page.first() {
            Some(&TABLE_LEAF) => unused.iter().any(|byte| *byte != 0),
            Some(&(INDEX_LEAF | INDEX_INTERIOR)) => {
                texts.iter().any(|text| text.find(unused).is_some())
            }
            Some(_) | None => false,
        };
        if copies {
            found.push(number);
        }
    }
    Ok(found)
}

/// Overwrites the unused middle of these tree pages with zeros, in the file itself. SQLite never reads
/// those bytes. The write-ahead log must be empty, and no connection may
/// write one of these pages from its cache any more.
pub(super) fn erase_unused(file: &mut File, page_size: usize, pages: &[u64]) -> io::Result<()> {
    if file.metadata()?.len() / page_size.max(1) as u64 >= PAGES_MAX {
        let problem = "the database is too large to erase copies of deleted rows: run VACUUM on it while no host runs";
        return Err(io::Error::other(problem));
    }
    let mut page = vec![0; page_size];
    for number in pages {
        let begin = (number - 1) * page_size as u64;
        file.seek(SeekFrom::Start(begin))?;
        let is_tree = |kind| matches!(kind, TABLE_LEAF | INDEX_LEAF | INDEX_INTERIOR);
        if !fill(file, &mut page)? || !page.first().copied().is_some_and(is_tree) {
            continue;
        }
        let range = unused(&page);
        file.seek(SeekFrom::Start(begin + range.start as u64))?;
        file.write_all(&vec![0; range.len()])?;
    }
    file.sync_all()
}

/// Returns the range of the bytes between a page's cell pointers and its first cell. For pages that are no
/// tree pages the result is arbitrary.
fn unused(page: &[u8]) -> Range<usize> {
    let [kind, _, _, cells_high, cells_low, begin_high, begin_low, ..] = page else { return 0..0 };
    let header = if *kind == INDEX_INTERIOR { 12 } else { 8 };
    let cells = usize::from(u16::from_be_bytes([*cells_high, *cells_low]));
    let begin = usize::from(u16::from_be_bytes([*begin_high, *begin_low]));
    let pointers_end = header + 2 * cells;
    // 0 means 65,536, on an empty page of that size.
    if pointers_end <= begin && begin <= page.len() { pointers_end..begin } else { 0..0 }
}

/// Reads until the buffer is full. Returns false at the end of the file.
fn fill(from: &mut impl Read, buffer: &mut [u8]) -> io::Result<bool> {
    match from.read_exact(buffer) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}
