//! Reads and writes pages of the database file directly, for what SQLite does not offer: finds missing pages,
//! and finds and erases copies of deleted rows.
//!
//! The formats are documented in <https://sqlite.org/fileformat2.html>: b-tree pages in section 1.6,
//! the write-ahead log in section 4.1.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::Path;

use aho_corasick::AhoCorasick;

/// The kinds of b-tree pages, without the interior pages of tables: these have no rows.
const INDEX_INTERIOR: u8 = 2;
const INDEX_LEAF: u8 = 10;
const TABLE_LEAF: u8 = 13;

/// The two salts of the write-ahead log, in its header and in the header of a frame.
const WAL_SALTS: Range<usize> = 16..24;
const FRAME_SALTS: Range<usize> = 8..16;

/// Returns whether pages of the database are neither in its file nor in its write-ahead log, because the file
/// was truncated. SQLite checks the size of the file only if there is no log.
///
/// # Errors
/// If the file or the log cannot be read.
pub(super) fn has_missing_pages(
    database: &Path,
    wal: &Path,
    page_count: u64,
    page_size: u64,
) -> io::Result<bool> {
    // The order matters: a page that leaves the log in between is then in the file.
    let in_wal = pages_in_wal(wal, page_size)?;
    let in_file = std::fs::metadata(database)?.len() / page_size.max(1);
    Ok((in_file + 1..=page_count).any(|page| !in_wal.contains(&page)))
}

/// Returns the numbers of the pages in a write-ahead log.
fn pages_in_wal(wal: &Path, page_size: u64) -> io::Result<HashSet<u64>> {
    let mut pages = HashSet::new();
    let mut wal = match File::open(wal) {
        Ok(wal) => BufReader::new(wal),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(pages),
        Err(error) => return Err(error),
    };
    let (mut header, mut frame) = ([0; 32], [0; 24]);
    if !read_full(&mut wal, &mut header)? {
        return Ok(pages);
    }
    let skip = i64::try_from(page_size).unwrap_or(i64::MAX);
    // Frames of an older log, with other salts, may follow.
    while read_full(&mut wal, &mut frame)? && frame[FRAME_SALTS] == header[WAL_SALTS] {
        let number = [frame[0], frame[1], frame[2], frame[3]];
        pages.insert(u64::from(u32::from_be_bytes(number)));
        wal.seek_relative(skip)?;
    }
    Ok(pages)
}

/// Returns the numbers of the pages whose unused bytes may contain copies of deleted rows: the table leaves
/// with unused bytes that are not zero, and the index pages with one of `deleted_ids` in their unused bytes.
///
/// `secure_delete` overwrites deleted rows. But when SQLite merges pages, it moves other rows and
/// may leave their old bytes behind (`rebuildPage` in sqlite3.c). If those rows are deleted later,
/// only their current bytes are overwritten. So the unused middle of each table leaf must be zero.
/// Index pages keep bytes of live rows there when they are split, so an index page counts only if its
/// unused bytes contain one of the ids.
///
/// # Errors
/// If the file cannot be read.
pub(super) fn find_pages_with_copies(
    database: &mut File,
    page_size: usize,
    deleted_ids: &[&str],
) -> io::Result<Vec<u64>> {
    let deleted_ids = AhoCorasick::new(deleted_ids).map_err(io::Error::other)?;
    let mut database = BufReader::with_capacity(64 * page_size.max(1), database);
    let mut page = vec![0; page_size];
    // The first page has no records, and another header.
    database.seek(SeekFrom::Start(page_size as u64))?;
    let mut number = 1;
    let mut found = Vec::new();
    while read_full(&mut database, &mut page)? {
        number += 1;
        let unused = page.get(unused_range(&page)).unwrap_or_default();
        let has_copies = match page.first() {
            Some(&TABLE_LEAF) => unused.iter().any(|byte| *byte != 0),
            Some(&(INDEX_LEAF | INDEX_INTERIOR)) => deleted_ids.is_match(unused),
            Some(_) | None => false,
        };
        if has_copies {
            found.push(number);
        }
    }
    Ok(found)
}

/// Maximum number of pages of a file in which copies are erased. From here on, the first byte of an overflow
/// page, which is the high byte of a page number, can equal the kind of a b-tree page. With pages of 4 KiB
/// this is 128 GiB.
const ERASABLE_PAGES_MAX: u64 = 1 << 25;

/// Overwrites the unused middle of these b-tree pages with zeros, in the file itself. SQLite never reads
/// those bytes. The write-ahead log must be empty, and no connection may
/// write one of these pages from its cache any more.
///
/// # Errors
/// If the database is too large, or the file cannot be read, written or synced.
pub(super) fn erase_unused(file: &mut File, page_size: usize, pages: &[u64]) -> io::Result<()> {
    if file.metadata()?.len() / page_size.max(1) as u64 >= ERASABLE_PAGES_MAX {
        let problem = "the database is too large to erase copies of deleted rows: run VACUUM on it while no host runs";
        return Err(io::Error::other(problem));
    }
    let mut page = vec![0; page_size];
    for number in pages {
        let begin = (number - 1) * page_size as u64;
        file.seek(SeekFrom::Start(begin))?;
        let is_b_tree = |kind| matches!(kind, TABLE_LEAF | INDEX_LEAF | INDEX_INTERIOR);
        if !read_full(file, &mut page)? || !page.first().copied().is_some_and(is_b_tree) {
            continue;
        }
        let range = unused_range(&page);
        file.seek(SeekFrom::Start(begin + range.start as u64))?;
        file.write_all(&vec![0; range.len()])?;
    }
    file.sync_all()
}

/// Returns the range of the bytes between a page's cell pointers and its first cell. For pages that are not
/// b-tree pages the result is arbitrary.
fn unused_range(page: &[u8]) -> Range<usize> {
    let [kind, _, _, cells_high, cells_low, begin_high, begin_low, ..] = page else { return 0..0 };
    let header = if *kind == INDEX_INTERIOR { 12 } else { 8 };
    let cells = usize::from(u16::from_be_bytes([*cells_high, *cells_low]));
    let begin = match u16::from_be_bytes([*begin_high, *begin_low]) {
        // The end of an empty page of this size, which is too large for the field.
        0 => 65_536,
        begin => usize::from(begin),
    };
    let pointers_end = header + 2 * cells;
    if pointers_end <= begin && begin <= page.len() { pointers_end..begin } else { 0..0 }
}

/// Reads until the buffer is full. Returns false if the file ends before.
///
/// # Errors
/// If the file cannot be read.
fn read_full(from: &mut impl Read, buffer: &mut [u8]) -> io::Result<bool> {
    match from.read_exact(buffer) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}
