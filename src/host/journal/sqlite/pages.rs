//! Reads and writes pages of the database file directly, for what SQLite does not offer: finds missing pages,
//! and finds and erases copies of deleted rows.
//!
//! The formats are documented in <https://sqlite.org/fileformat2.html>: b-tree pages in section 1.6,
//! the write-ahead log in section 4.1.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::Path;

use rusqlite::Connection;

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

/// The layout of the pages of a database.
#[derive(Clone, Copy, Debug)]
pub(super) struct PageLayout {
    pub(super) page_size: usize,
    /// True if the database can give free pages back (`auto_vacuum`). Some pages are then pointer maps: section 1.8 of
    /// the format.
    pub(super) has_pointer_maps: bool,
}

impl PageLayout {
    pub(super) fn read(connection: &Connection) -> rusqlite::Result<Self> {
        let mode: i64 = connection.pragma_query_value(None, "auto_vacuum", |row| row.get(0))?;
        let page_size = connection.pragma_query_value(None, "page_size", |row| row.get(0))?;
        Ok(Self { page_size, has_pointer_maps: mode != 0 })
    }

    /// Returns whether a page may be a page of a table or an index. The first page is another one.
    fn may_be_b_tree(self, number: u64) -> bool {
        if number < 2 || !self.has_pointer_maps {
            return number >= 2;
        }
        let pages_per_map = self.page_size as u64 / 5 + 1;
        let map = (number - 2) / pages_per_map * pages_per_map + 2;
        // The page at 1 GiB is not used.
        let unused = (1 << 30) / self.page_size as u64 + 1;
        number != if map == unused { map + 1 } else { map }
    }
}

/// The unused bytes of pages, by the number of the page, that may contain copies of deleted rows.
pub(super) type Copies = BTreeMap<u64, Range<usize>>;

/// The identity of a write-ahead log: SQLite writes other salts when it begins the log anew.
pub(super) type LogSalts = [u8; 8];

/// Finds copies of deleted rows in the pages of a write-ahead log, from the frame with this index up to that number of
/// frames. Begins with the first frame if the log has other salts. Returns the salts, and the pages in their latest
/// form.
///
/// `secure_delete` overwrites deleted rows. But when SQLite splits or merges pages, it moves other rows and may leave
/// their old bytes in the unused middle of a page (`rebuildPage` in sqlite3.c). If those rows are deleted later, only
/// their current bytes are overwritten.
///
/// # Errors
/// If the log cannot be read.
pub(super) fn find_copies_in_log(
    wal: &File,
    layout: PageLayout,
    (salts, first): (LogSalts, u64),
    frames: u64,
) -> io::Result<(LogSalts, Copies)> {
    let mut wal = BufReader::with_capacity(64 * layout.page_size.max(1), wal);
    let (mut header, mut frame) = ([0; 32], vec![0; 24 + layout.page_size]);
    wal.rewind()?;
    let mut copies = Copies::new();
    if !read_full(&mut wal, &mut header)? {
        return Ok((salts, copies));
    }
    let mut present = LogSalts::default();
    present.copy_from_slice(&header[WAL_SALTS]);
    let first = if present == salts { first } else { 0 };
    wal.seek(SeekFrom::Start(32 + first * frame.len() as u64))?;
    for _ in first..frames {
        if !read_full(&mut wal, &mut frame)? {
            break;
        }
        let (head, page) = frame.split_at(24);
        let number = head.first_chunk().map_or(0, |number| u64::from(u32::from_be_bytes(*number)));
        match unused_with_copies(layout, number, page) {
            Some(unused) => copies.insert(number, unused),
            None => copies.remove(&number),
        };
    }
    Ok((present, copies))
}

/// Returns the unused middle of a b-tree page if it may contain copies of rows: if it is not zero, and the rows of the
/// page have texts.
fn unused_with_copies(layout: PageLayout, number: u64, page: &[u8]) -> Option<Range<usize>> {
    let has_texts = match *page.first()? {
        _ if !layout.may_be_b_tree(number) => false,
        TABLE_LEAF => true,
        INDEX_LEAF | INDEX_INTERIOR => !has_only_numbers(page),
        _ => false,
    };
    let unused = unused_range(page);
    let is_used = has_texts && page.get(unused.clone())?.iter().any(|byte| *byte != 0);
    is_used.then_some(unused)
}

/// Returns whether the first row of an index page has neither texts nor bytes: then no row of the index has any.
fn has_only_numbers(page: &[u8]) -> bool {
    let is_interior = page.first() == Some(&INDEX_INTERIOR);
    let first = || {
        let pointer = if is_interior { 12 } else { 8 };
        let cell = u16::from_be_bytes(*page.get(pointer..)?.first_chunk()?);
        // The number of a page precedes the row.
        let mut cell = page.get(usize::from(cell) + if is_interior { 4 } else { 0 }..)?;
        let _payload_bytes = read_varint(&mut cell)?;
        let before = cell.len();
        let header_bytes = usize::try_from(read_varint(&mut cell)?).ok()?;
        let mut types = cell.get(..header_bytes.checked_sub(before - cell.len())?)?;
        let mut only_numbers = true;
        while !types.is_empty() {
            only_numbers &= read_varint(&mut types)? < 12;
        }
        Some(only_numbers)
    };
    let has_rows = page.get(3..5).is_some_and(|cells| cells != [0, 0]);
    has_rows && first().unwrap_or(false)
}

/// Reads a number of variable length: section 1.6 of the format.
fn read_varint(from: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for at in 0..9 {
        let (byte, rest) = from.split_first()?;
        *from = rest;
        if at == 8 {
            return Some(value << 8 | u64::from(*byte));
        }
        value = value << 7 | u64::from(byte & 0x7f);
        if byte & 0x80 == 0 {
            break;
        }
    }
    Some(value)
}

/// Maximum number of pages of a file in which copies are erased. From here on, the first byte of an overflow
/// page, which is the high byte of a page number, can equal the kind of a b-tree page. With pages of 4 KiB
/// this is 128 GiB.
const ERASABLE_PAGES_MAX: u64 = 1 << 25;

/// Overwrites unused bytes of pages with zeros, in the file itself. SQLite never reads those bytes. The file must have
/// the latest form of these pages, and no checkpoint may write them meanwhile. Returns false if there are none.
///
/// # Errors
/// If the database is too large, or the file cannot be read or written.
pub(super) fn erase_copies(file: &mut File, page_size: usize, copies: &Copies) -> io::Result<bool> {
    let pages = file.metadata()?.len() / page_size.max(1) as u64;
    if pages >= ERASABLE_PAGES_MAX {
        let problem = "the database is too large to erase copies of deleted rows: run VACUUM on it while no host runs";
        return Err(io::Error::other(problem));
    }
    let mut is_changed = false;
    // A page behind the end of the file was removed meanwhile.
    for (number, unused) in copies.range(..=pages) {
        let begin = (number - 1) * page_size as u64;
        file.seek(SeekFrom::Start(begin + unused.start as u64))?;
        file.write_all(&vec![0; unused.len()])?;
        is_changed = true;
    }
    Ok(is_changed)
}

/// Returns those of these pages of the file that may contain copies of deleted rows, in their present form.
///
/// # Errors
/// If the file cannot be read.
pub(super) fn find_copies(
    file: &mut File,
    layout: PageLayout,
    pages: impl IntoIterator<Item = u64>,
) -> io::Result<Copies> {
    let mut page = vec![0; layout.page_size];
    let mut copies = Copies::new();
    for number in pages {
        file.seek(SeekFrom::Start((number - 1) * layout.page_size as u64))?;
        if read_full(file, &mut page)?
            && let Some(unused) = unused_with_copies(layout, number, &page)
        {
            copies.insert(number, unused);
        }
    }
    Ok(copies)
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
