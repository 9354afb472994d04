//! The report of a bench: Markdown tables under its name, which `benches/all.sh` collects.

/// A bench's section of `RESULTS.md`.
pub(crate) struct Report {
    text: String,
}

impl Report {
    pub(crate) fn new(name: &str) -> Self {
        Self { text: format!("\n## {name}\n") }
    }

    /// Adds a table, preceded by a sentence that explains it.
    pub(crate) fn table<const COLUMNS: usize>(
        mut self,
        about: &str,
        head: [&str; COLUMNS],
        rows: impl IntoIterator<Item = [String; COLUMNS]>,
    ) -> Self {
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        self.text += &format!("\n{about}\n\n");
        self.text += &line(&head.map(str::to_owned));
        self.text += &line(&head.map(|_| "---".to_owned()));
        self.text.extend(rows.into_iter().map(|row| line(&row)));
        self
    }

    pub(crate) fn print(self) {
        println!("{}", self.text);
    }
}
