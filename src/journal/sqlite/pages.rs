//! What SQLite does not tell of its files: which of their pages are missing, and whether deleted
//! rows have left copies.
//!
//! The formats are those of <https://sqlite.org/fileformat2.html>: 1.6 of the pages of trees, 4.1
//! of the write-ahead log.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read, Seek, SeekFrom};
use std::path::Path;

use memchr::memmem;

/// Kinds of pages of trees.
const INDEX_INTERIOR: u8 = 2;
const INDEX_LEAF: u8 = 10;
const TABLE_LEAF: u8 = 13;

/// Whether pages of a database of so many are neither in its file nor in its log: somebody has cut
/// the file off. SQLite looks at the file's size only where there is no log.
pub(super) fn are_missing(
    database: &Path,
    log: &Path,
    pages: u64,
    page_size: u64,
) -> io::Result<bool> {
    // In this order: a page that leaves the log in between is in the file by then.
    let logged = logged(log, page_size)?;
    let there = std::fs::metadata(database)?.len() / page_size.max(1);
    Ok((there + 1..=pages).any(|page| !logged.contains(&page)))
}

/// The pages in a write-ahead log.
fn logged(log: &Path, page_size: u64) -> io::Result<HashSet<u64>> {
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
    // Behind the frames of this log may be those of an older one, with another salt.
    while fill(&mut log, &mut frame)? && frame[8..16] == header[16..24] {
        let number = [frame[0], frame[1], frame[2], frame[3]];
        pages.insert(u64::from(u32::from_be_bytes(number)));
        log.seek_relative(skip)?;
    }
    Ok(pages)
}

/// Whether pages of a database hold copies of rows that may be deleted, or texts of these.
///
/// `secure_delete` overwrites rows that are deleted. But where pages that have become empty are
/// merged, rows of others move, and SQLite may leave the bytes that they have moved from
/// (`rebuildPage` in sqlite3.c). When those others are deleted later, only the rows themselves are
/// overwritten. So nothing may lie in the unused middle of a leaf of a table; and since indexes are
/// split with every insert, of theirs only what holds one of the texts is counted.
pub(super) fn hold_copies(database: &Path, page_size: usize, texts: &[&str]) -> io::Result<bool> {
    let texts: Vec<_> = texts.iter().map(|text| memmem::Finder::new(text.as_bytes())).collect();
    let mut database = BufReader::with_capacity(64 * page_size.max(1), File::open(database)?);
    let mut page = vec![0; page_size];
    // The first page holds no rows of ours, and begins in another way.
    database.seek(SeekFrom::Start(page_size as u64))?;
    while fill(&mut database, &mut page)? {
        let unused = unused(&page);
        let copies = match page.first() {
            Some(&TABLE_LEAF) => unused.iter().any(|byte| *byte != 0),
            Some(&(INDEX_LEAF | INDEX_INTERIOR)) => {
                texts.iter().any(|text| text.find(unused).is_some())
            }
            Some(_) | None => false,
        };
        if copies {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The bytes between a page's pointers to its rows and the first of these. Of a page that is none
/// of a tree, anything or nothing.
fn unused(page: &[u8]) -> &[u8] {
    let [kind, _, _, cells_high, cells_low, begin_high, begin_low, ..] = page else { return &[] };
    let header = if *kind == INDEX_INTERIOR { 12 } else { 8 };
    let cells = usize::from(u16::from_be_bytes([*cells_high, *cells_low]));
    let begin = usize::from(u16::from_be_bytes([*begin_high, *begin_low]));
    page.get(header + 2 * cells..begin).unwrap_or_default()
}

/// Whether there was enough to fill the buffer.
fn fill(from: &mut impl Read, buffer: &mut [u8]) -> io::Result<bool> {
    match from.read_exact(buffer) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}
