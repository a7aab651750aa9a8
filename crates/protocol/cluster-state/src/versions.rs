//! The values that one thing has had, each from its LSN on.

use pg_types::Lsn;

/// Values by the LSN from which each holds, ascending. At most one value an LSN: the last one a
/// record gives is what holds after the record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Versions<T> {
    values: Vec<(Lsn, T)>,
}

impl<T> Default for Versions<T> {
    fn default() -> Self {
        Versions { values: Vec::new() }
    }
}

impl<T> Versions<T> {
    /// Adds the value that holds from `lsn` on. Records arrive in order, so this appends; a value for
    /// an LSN that has one replaces it, which makes re-ingesting a record harmless.
    pub(crate) fn insert(&mut self, lsn: Lsn, value: T) {
        match self.values.last_mut() {
            Some((last, held)) if *last == lsn => *held = value,
            Some((last, _)) if *last > lsn => {
                let at = self.values.partition_point(|(from, _)| *from < lsn);
                match self.values.get_mut(at) {
                    Some((from, held)) if *from == lsn => *held = value,
                    _ => self.values.insert(at, (lsn, value)),
                }
            }
            _ => self.values.push((lsn, value)),
        }
    }

    /// The value that holds at `lsn`, and since when.
    pub(crate) fn at(&self, lsn: Lsn) -> Option<(Lsn, &T)> {
        let after = self.values.partition_point(|(from, _)| *from <= lsn);
        let (from, value) = self.values.get(after.checked_sub(1)?)?;
        Some((*from, value))
    }

    /// Where the last value at or before `lsn` that `matches` began to hold.
    pub(crate) fn last_where(&self, lsn: Lsn, matches: impl Fn(&T) -> bool) -> Option<Lsn> {
        let upto = self.values.partition_point(|(from, _)| *from <= lsn);
        let upto = self.values.get(..upto)?;
        upto.iter()
            .rev()
            .find(|(_, value)| matches(value))
            .map(|(from, _)| *from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_holds_from_its_lsn_until_the_next() {
        let mut versions = Versions::default();
        versions.insert(Lsn(20), 'b');
        versions.insert(Lsn(10), 'a');
        versions.insert(Lsn(30), 'x');
        versions.insert(Lsn(30), 'c');
        assert_eq!(versions.at(Lsn(9)), None);
        assert_eq!(versions.at(Lsn(10)), Some((Lsn(10), &'a')));
        assert_eq!(versions.at(Lsn(29)), Some((Lsn(20), &'b')));
        assert_eq!(versions.at(Lsn::MAX), Some((Lsn(30), &'c')));
        assert_eq!(
            versions.last_where(Lsn(29), |value| *value < 'b'),
            Some(Lsn(10))
        );
        assert_eq!(versions.last_where(Lsn(29), |value| *value == 'c'), None);
    }
}
