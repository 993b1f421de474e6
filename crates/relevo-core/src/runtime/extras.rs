//! The extra columns of a call: values that its caller gives, kept until the row is committed.

use super::{
    act::{ActCall, work},
    group::Work,
};
use crate::{
    error::{Error, Result},
    trajectory::{ExtraInput, check_inputs},
};

impl ActCall<'_> {
    /// Takes the values of the extra columns of all actors, in the caller's order. A call that is recorded needs them where the
    /// agent has such columns.
    ///
    /// # Errors
    /// [`Error::Contract`] where they are not those of the columns.
    pub fn write_extras(&mut self, extras: &[ExtraInput<'_>]) -> Result<()> {
        self.extras_given = work(&mut self.guard)?.write_extras(extras)?;
        Ok(())
    }
}

impl Work {
    /// Takes the values of the extra columns for the row to come; `false` where none are given.
    pub(super) fn write_extras(&mut self, extras: &[ExtraInput<'_>]) -> Result<bool> {
        if extras.is_empty() {
            return Ok(false);
        }
        check_inputs(&self.layout.extras, extras, self.layout.columns())?;
        for (cells, given) in self.extras.iter_mut().zip(extras) {
            cells.write(*given, self.order.as_deref());
        }
        Ok(true)
    }

    /// Refuses a call that is recorded and lacks the values of extra columns.
    pub(super) fn require_extras(&self, recorded: bool) -> Result<()> {
        if self.extras.is_empty() || self.extras_given || !recorded {
            return Ok(());
        }
        let names: Vec<_> = self.layout.extras.iter().map(|spec| spec.name.as_str()).collect();
        Err(Error::Contract(format!(
            "the agent records extra columns ({}), and this call gives no values for them; give them, or do not record the call",
            names.join(", ")
        )))
    }

    /// Copies what was given into the row that is committed.
    pub(super) fn commit_extras(&mut self, row: usize) {
        if std::mem::take(&mut self.extras_given) && self.layout.recorded {
            let (first, columns) = (self.block.cells(row).start, self.layout.columns());
            for (target, cells) in self.block.extras.iter_mut().zip(&self.extras) {
                target.copy(first, cells, 0..columns);
            }
        }
    }
}
