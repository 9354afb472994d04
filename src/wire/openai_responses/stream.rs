//! The items of a response, as far as they have come, and the search for the item to which an event
//! refers.

/// Maximum number of items that are tracked. A further item replaces the last one.
const ITEMS_MAX: usize = 2048;

/// The kind of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ItemKind {
    Message,
    Reasoning,
    Function,
    Custom,
    /// Any other item: mostly a tool call that the service ran itself, or its result.
    Hosted,
}

impl ItemKind {
    pub(super) fn parse(item_type: &str) -> Self {
        match item_type {
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

/// The kind of a text within an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TextKind {
    Text,
    Refusal,
    Reasoning,
    Summary,
}

/// An item, as far as it has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TrackedItem {
    /// The wire's `output_index`, or one more than the largest index so far if the wire sent none. A
    /// call also gets the latter if an open call has its `output_index`, so open calls have distinct indexes.
    pub(super) index: u64,
    /// The index with which events refer to the item. Differs from `index` if an open call had it already.
    event_index: u64,
    pub(super) kind: ItemKind,
    id: Option<Box<str>>,
    pub(super) call_id: Option<Box<str>>,
    name: Option<Box<str>>,
    /// The kind and the part index of the last text.
    pub(super) last_text: Option<(TextKind, Option<u64>)>,
    /// Bytes of text that came in pieces since the last complete part.
    pub(super) piece_bytes: usize,
    /// Text other than a refusal has come.
    pub(super) has_text: bool,
    /// A name has come.
    pub(super) is_named: bool,
    /// Pieces of arguments have come.
    pub(super) has_arguments: bool,
    pub(super) is_sealed: bool,
    /// The service has sent the complete item.
    pub(super) is_done: bool,
}

impl TrackedItem {
    /// Returns whether an event with this id refers to the item. Some services send the call's id.
    fn has_id(&self, id: &str) -> bool {
        self.id.as_deref() == Some(id) || self.call_id.as_deref() == Some(id)
    }
}

/// The reference of an event to an item.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ItemRef<'a> {
    pub(super) index: Option<u64>,
    pub(super) id: Option<&'a str>,
    pub(super) call_id: Option<&'a str>,
    pub(super) name: Option<&'a str>,
}

/// The items of a response, in the order in which they were first mentioned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ItemTracker {
    items: Vec<TrackedItem>,
    /// The position that `find` or `add` returned last.
    current: usize,
    /// Items were replaced because there were too many.
    pub(super) overflowed: bool,
}

impl ItemTracker {
    pub(super) fn all(&self) -> &[TrackedItem] {
        &self.items
    }

    pub(super) fn get_mut(&mut self, position: usize) -> Option<&mut TrackedItem> {
        self.items.get_mut(position)
    }

    /// Returns the position of the item to which an event with a piece or a complete part refers.
    ///
    /// The item is found by the output index, because some services change an item's id with every
    /// event. Some bridges give several items the same index; then the id decides, if one of them has
    /// it. An event without an index refers to the item with its id, or else to the last of its kind.
    pub(super) fn find(&mut self, kind: ItemKind, reference: ItemRef<'_>) -> Option<usize> {
        let at_index =
            |item: &TrackedItem| item.kind == kind && Some(item.event_index) == reference.index;
        let is_exact =
            |item: &TrackedItem| at_index(item) && reference.id.is_none_or(|id| item.has_id(id));
        let current = self.items.get(self.current);
        let found = match reference.index {
            Some(_) if current.is_some_and(is_exact) => Some(self.current),
            Some(_) => self.items.iter().rposition(is_exact).or_else(|| {
                let current = current.is_some_and(at_index).then_some(self.current);
                current.or_else(|| self.items.iter().rposition(at_index))
            }),
            None => self
                .by_id(kind, reference.id)
                .or_else(|| self.items.iter().rposition(|item| item.kind == kind)),
        };
        self.current = found.unwrap_or(self.current);
        found
    }

    /// Returns the position of the item to which an event with a whole item refers: never one with
    /// another call id, because a new item may come with an index that another item had before.
    pub(super) fn find_for_item(
        &mut self,
        kind: ItemKind,
        reference: ItemRef<'_>,
    ) -> Option<usize> {
        let is_same_call = |item: &TrackedItem| {
            item.kind == kind
                && !item.is_done
                && item.call_id.as_deref() == reference.call_id
                && reference.index.is_none_or(|index| index == item.event_index)
        };
        let call = reference.call_id.and_then(|_| self.items.iter().rposition(is_same_call));
        let found = call.or_else(|| match reference.index {
            Some(_) => self.find(kind, reference),
            None => self.by_id(kind, reference.id).or_else(|| {
                let last = self.items.len().checked_sub(1)?;
                let open = |item: &TrackedItem| item.kind == kind && !item.is_done;
                self.items.last().is_some_and(open).then_some(last)
            }),
        });
        found.filter(|position| {
            let known = self.items.get(*position).and_then(|item| item.call_id.as_deref());
            known.is_none() || reference.call_id.is_none() || known == reference.call_id
        })
    }

    fn by_id(&self, kind: ItemKind, id: Option<&str>) -> Option<usize> {
        let id = id?;
        self.items.iter().rposition(|item| item.kind == kind && item.has_id(id))
    }

    /// Adds an item and returns its position.
    pub(super) fn add(&mut self, kind: ItemKind, reference: ItemRef<'_>) -> usize {
        let next = || self.items.iter().map(|item| item.index + 1).max().unwrap_or(0);
        let event_index = reference.index.unwrap_or_else(next).min(u64::MAX - 1);
        let is_taken = |item: &TrackedItem| {
            item.kind.is_call() && item.index == event_index && !item.is_done && !item.is_sealed
        };
        let is_taken = kind.is_call() && self.items.iter().any(is_taken);
        let index = if is_taken { next() } else { event_index };
        if self.items.len() >= ITEMS_MAX {
            self.items.pop();
            self.overflowed = true;
        }
        self.items.push(TrackedItem {
            index: index.min(u64::MAX - 1),
            event_index,
            kind,
            id: reference.id.map(Into::into),
            call_id: reference.call_id.map(Into::into),
            name: reference.name.map(Into::into),
            last_text: None,
            piece_bytes: 0,
            has_text: false,
            is_named: false,
            has_arguments: false,
            is_sealed: false,
            is_done: false,
        });
        self.current = self.items.len() - 1;
        self.current
    }

    /// Returns, for each item in the list of the complete response, the position at which it is
    /// tracked already.
    ///
    /// Items of the same kind are matched by these rules, each for the items that the rules before left:
    ///
    /// 1. by the call's id
    /// 2. by the position in the list, unless both have call ids
    /// 3. by the item's id
    /// 4. in order, unless both have call ids: a service may have numbered the items differently
    /// 5. by position and name: vLLM generates new call ids for the list
    pub(super) fn positions_of(&self, list: &[(ItemKind, ItemRef<'_>)]) -> Vec<Option<usize>> {
        let mut free: Vec<bool> = vec![true; self.items.len()];
        let mut positions: Vec<Option<usize>> = vec![None; list.len()];
        let rules: [fn(&TrackedItem, &ItemRef<'_>) -> bool; 5] = [
            |item, reference| {
                reference.call_id.is_some() && item.call_id.as_deref() == reference.call_id
            },
            |item, reference| {
                let same_call = item.call_id.is_none() || reference.call_id.is_none();
                same_call && Some(item.event_index) == reference.index
            },
            |item, reference| reference.id.is_some() && item.id.as_deref() == reference.id,
            |item, reference| item.call_id.is_none() || reference.call_id.is_none(),
            |item, reference| {
                let same_name = item.name.is_some() && item.name.as_deref() == reference.name;
                same_name && Some(item.event_index) == reference.index
            },
        ];
        for rule in rules {
            for (position, (kind, reference)) in positions.iter_mut().zip(list) {
                if position.is_some() {
                    continue;
                }
                let found =
                    self.items.iter().zip(&free).position(|(item, free)| {
                        *free && item.kind == *kind && rule(item, reference)
                    });
                if let Some(is_free) = found.and_then(|found| free.get_mut(found)) {
                    *is_free = false;
                    *position = found;
                }
            }
        }
        positions
    }
}
