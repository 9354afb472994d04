//! The items of a response, so far as they have come: which of them an event means.

/// Items that are told apart. What comes beyond takes the place of the last one.
const ITEMS_MAX: usize = 2048;

/// What an item is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Message,
    Reasoning,
    Function,
    Custom,
    /// What the service did itself.
    Hosted,
}

impl Kind {
    pub(super) fn of(word: &str) -> Self {
        match word {
            "message" => Self::Message,
            "reasoning" => Self::Reasoning,
            "function_call" => Self::Function,
            "custom_tool_call" => Self::Custom,
            _ => Self::Hosted,
        }
    }

    pub(super) fn is_call(self) -> bool {
        match self {
            Self::Function | Self::Custom => true,
            Self::Message | Self::Reasoning | Self::Hosted => false,
        }
    }
}

/// Which member of an item a piece of text is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Voice {
    Text,
    Refusal,
    Thinking,
    Summary,
}

/// An item, so far as it has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Item {
    /// The wire's `output_index`, or its place if there is none. Of calls that are open at once
    /// each has its own.
    pub(super) index: u64,
    /// The index by which events mean it.
    said_index: u64,
    pub(super) kind: Kind,
    id: Option<Box<str>>,
    pub(super) call_id: Option<Box<str>>,
    name: Option<Box<str>>,
    /// What spoke last, and in which part.
    pub(super) spoke: Option<(Voice, Option<u64>)>,
    /// Bytes of text that came in pieces since the last part was said as a whole.
    pub(super) piece_bytes: usize,
    /// Text that is no refusal has come.
    pub(super) has_text: bool,
    /// A name has come.
    pub(super) is_named: bool,
    /// Pieces of arguments have come.
    pub(super) has_arguments: bool,
    pub(super) is_sealed: bool,
    /// The service has said that it is whole.
    pub(super) is_done: bool,
}

impl Item {
    /// Whether an event that names this id means it: a service whose items have none names a
    /// call's.
    fn is_called(&self, id: &str) -> bool {
        self.id.as_deref().or(self.call_id.as_deref()) == Some(id)
    }
}

/// How an event says which item it means.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Named<'a> {
    pub(super) index: Option<u64>,
    pub(super) id: Option<&'a str>,
    pub(super) call_id: Option<&'a str>,
    pub(super) name: Option<&'a str>,
}

/// The items of a response, in the order in which they were first heard of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Items {
    known: Vec<Item>,
    /// The place that was found last.
    current: usize,
    /// Some are forgotten.
    pub(super) overflown: bool,
}

impl Items {
    pub(super) fn all(&self) -> &[Item] {
        &self.known
    }

    pub(super) fn at(&mut self, place: usize) -> Option<&mut Item> {
        self.known.get_mut(place)
    }

    /// The place of the item that an event about a piece means.
    ///
    /// It is found by the output index, because some services change an item's id with every
    /// event; the id decides where bridges give several items one index. Without an index it is
    /// found by the id, or else it is the last of its kind.
    pub(super) fn find(&mut self, kind: Kind, named: Named<'_>) -> Option<usize> {
        let at_index = |item: &Item| item.kind == kind && Some(item.said_index) == named.index;
        let is_it = |item: &Item| at_index(item) && named.id.is_none_or(|id| item.is_called(id));
        let current = self.known.get(self.current);
        let found = match named.index {
            Some(_) if current.is_some_and(is_it) => Some(self.current),
            Some(_) => self.known.iter().rposition(is_it).or_else(|| {
                let current = current.is_some_and(at_index).then_some(self.current);
                current.or_else(|| self.known.iter().rposition(at_index))
            }),
            None => self
                .by_id(kind, named.id)
                .or_else(|| self.known.iter().rposition(|item| item.kind == kind)),
        };
        self.current = found.unwrap_or(self.current);
        found
    }

    /// The place of the item that an event means which tells of it as a whole: another item may
    /// come with an index that was in use.
    pub(super) fn find_whole(&mut self, kind: Kind, named: Named<'_>) -> Option<usize> {
        let is_same_call = |item: &Item| {
            item.kind == kind
                && !item.is_done
                && item.call_id.as_deref() == named.call_id
                && named.index.is_none_or(|index| index == item.said_index)
        };
        let call = named.call_id.and_then(|_| self.known.iter().rposition(is_same_call));
        let found = call.or_else(|| match named.index {
            Some(_) => self.find(kind, named),
            None => self.by_id(kind, named.id).or_else(|| {
                let last = self.known.len().checked_sub(1)?;
                let open = |item: &Item| item.kind == kind && !item.is_done;
                self.known.last().is_some_and(open).then_some(last)
            }),
        });
        found.filter(|place| {
            let known = self.known.get(*place).and_then(|item| item.call_id.as_deref());
            known.is_none() || named.call_id.is_none() || known == named.call_id
        })
    }

    fn by_id(&self, kind: Kind, id: Option<&str>) -> Option<usize> {
        let id = id?;
        self.known.iter().rposition(|item| item.kind == kind && item.is_called(id))
    }

    /// Takes up a new item, and gives its place.
    pub(super) fn add(&mut self, kind: Kind, named: Named<'_>) -> usize {
        let next = || self.known.iter().map(|item| item.index + 1).max().unwrap_or(0);
        let said_index = named.index.unwrap_or_else(next).min(u64::MAX - 1);
        let is_taken = |item: &Item| {
            item.kind.is_call() && item.index == said_index && !item.is_done && !item.is_sealed
        };
        let is_taken = kind.is_call() && self.known.iter().any(is_taken);
        let index = if is_taken { next() } else { said_index };
        if self.known.len() >= ITEMS_MAX {
            self.known.pop();
            self.overflown = true;
        }
        self.known.push(Item {
            index: index.min(u64::MAX - 1),
            said_index,
            kind,
            id: named.id.map(Into::into),
            call_id: named.call_id.map(Into::into),
            name: named.name.map(Into::into),
            spoke: None,
            piece_bytes: 0,
            has_text: false,
            is_named: false,
            has_arguments: false,
            is_sealed: false,
            is_done: false,
        });
        self.current = self.known.len() - 1;
        self.current
    }

    /// For each item of the whole response's list the place at which it is known already.
    ///
    /// Items are the same by a call's id, by their place in the list, or by their id; what is
    /// left goes by its order, because a service may have counted otherwise. vLLM makes up the ids
    /// of calls once more for the list, so a call's place and name tell as well.
    pub(super) fn places_of(&self, list: &[(Kind, Named<'_>)]) -> Vec<Option<usize>> {
        let mut free: Vec<bool> = vec![true; self.known.len()];
        let mut places: Vec<Option<usize>> = vec![None; list.len()];
        let rules: [fn(&Item, &Named<'_>) -> bool; 5] = [
            |item, named| named.call_id.is_some() && item.call_id.as_deref() == named.call_id,
            |item, named| {
                let same_call = item.call_id.is_none() || named.call_id.is_none();
                same_call && Some(item.said_index) == named.index
            },
            |item, named| named.id.is_some() && item.id.as_deref() == named.id,
            |item, named| item.call_id.is_none() || named.call_id.is_none(),
            |item, named| {
                let same_name = item.name.is_some() && item.name.as_deref() == named.name;
                same_name && Some(item.said_index) == named.index
            },
        ];
        for rule in rules {
            for (place, (kind, named)) in places.iter_mut().zip(list) {
                if place.is_some() {
                    continue;
                }
                let found = self
                    .known
                    .iter()
                    .zip(&free)
                    .position(|(item, free)| *free && item.kind == *kind && rule(item, named));
                if let Some(slot) = found.and_then(|found| free.get_mut(found)) {
                    *slot = false;
                    *place = found;
                }
            }
        }
        places
    }
}
