//! The steps of a run as record batches, as the segments hold them.

use std::{collections::VecDeque, sync::Arc};

use arrow_array::{RecordBatch, RecordBatchOptions, new_null_array};
use arrow_schema::{FieldRef, Schema, SchemaRef};

use super::{reader::Run, table::Selection};
use crate::{Error, Result};

/// Iterator over the steps of a [`Run`], segment by segment, as record batches of one schema.
#[derive(Debug)]
pub struct Steps {
    run: Arc<Run>,
    schema: SchemaRef,
    /// For each episode of the table, whether it is wanted; `None` where all are.
    wanted: Option<Vec<Vec<bool>>>,
    segment: usize,
    batch: usize,
    ready: VecDeque<RecordBatch>,
}

impl Run {
    /// The steps of the wanted episodes: these columns, or all. Where segments have different columns, those that one lacks are
    /// null in its rows.
    ///
    /// # Errors
    /// [`Error::Contract`] where there is no column of a name that was given; [`Error::Trajectory`] where two segments have
    /// columns of one name and different types.
    pub fn steps(self: &Arc<Self>, columns: Option<&[String]>, selection: &Selection) -> Result<Steps> {
        let schema = Arc::new(self.columns(columns)?);
        let wanted = (!selection.is_everything()).then(|| {
            let mut wanted: Vec<Vec<bool>> =
                self.segments.iter().map(|segment| vec![false; segment.parts.len()]).collect();
            let table = self.table();
            for (index, _) in table.episodes.iter().enumerate().filter(|(_, episode)| selection.takes(episode)) {
                for place in table.places_of(index) {
                    let batch = &self.segments[place.segment as usize].batches[place.batch as usize];
                    wanted[place.segment as usize][batch.parts.start + place.part as usize] = true;
                }
            }
            wanted
        });
        Ok(Steps { run: self.clone(), schema, wanted, segment: 0, batch: 0, ready: VecDeque::new() })
    }

    /// The schema of all steps, or of these columns of them.
    fn columns(&self, names: Option<&[String]>) -> Result<Schema> {
        let mut fields: Vec<FieldRef> = Vec::new();
        for segment in &self.segments {
            for (at, field) in segment.schema.fields().iter().enumerate() {
                if names.is_some_and(|names| !names.contains(field.name())) {
                    continue;
                }
                match fields.iter().find(|known| known.name() == field.name()) {
                    None => fields.insert(at.min(fields.len()), field.clone()),
                    Some(known) if known.data_type() == field.data_type() && known.metadata() == field.metadata() => {}
                    Some(known) => {
                        let reason = format!(
                            "the column `{}` is {} here and {} in a segment before; choose columns that all segments have alike \
                             by `columns=`",
                            field.name(),
                            field.data_type(),
                            known.data_type()
                        );
                        return Err(Error::trajectory(&segment.path, reason));
                    }
                }
            }
        }
        if let Some(names) = names {
            for name in names {
                if !fields.iter().any(|field| field.name() == name) && !self.segments.is_empty() {
                    let mut known: Vec<&str> = self
                        .segments
                        .iter()
                        .flat_map(|segment| segment.schema.fields().iter().map(|field| field.name().as_str()))
                        .collect();
                    known.sort_unstable();
                    known.dedup();
                    return Err(Error::Contract(format!(
                        "the steps have no column `{name}`; they have: {}",
                        known.join(", ")
                    )));
                }
            }
            let place = |field: &FieldRef| names.iter().position(|name| name == field.name());
            fields.sort_by_key(place);
        }
        // One that a segment lacks is null there.
        let everywhere = |field: &FieldRef| {
            self.segments.iter().all(|segment| segment.schema.column_with_name(field.name()).is_some())
        };
        let fields: Vec<FieldRef> = fields
            .into_iter()
            .map(|field| if everywhere(&field) { field } else { Arc::new(field.as_ref().clone().with_nullable(true)) })
            .collect();
        Ok(Schema::new(fields))
    }
}

impl Steps {
    /// The schema of all batches.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Reads the next batch of the segments; its wanted rows are ready then.
    fn read(&mut self) -> Result<()> {
        let segment = &self.run.segments[self.segment];
        let index = self.batch;
        self.batch += 1;
        // Rows that no part tells of belong to no episode.
        let mut ranges: Vec<std::ops::Range<usize>> = Vec::new();
        let is_wanted = |at: &usize| self.wanted.as_ref().is_none_or(|wanted| wanted[self.segment][*at]);
        for at in segment.batches[index].parts.clone().filter(is_wanted) {
            let rows = segment.parts[at].rows();
            match ranges.last_mut() {
                Some(before) if before.end == rows.start => before.end = rows.end,
                _ => ranges.push(rows),
            }
        }
        if ranges.is_empty() {
            return Ok(());
        }
        let batch = segment.batch(index)?;
        if ranges.iter().any(|rows| rows.end > batch.num_rows()) {
            return Err(segment.contradicts(index, "it has fewer rows than its sidecar tells"));
        }
        let columns = self.schema.fields().iter().map(|field| {
            batch
                .column_by_name(field.name())
                .cloned()
                .unwrap_or_else(|| new_null_array(field.data_type(), batch.num_rows()))
        });
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        let batch = RecordBatch::try_new_with_options(self.schema.clone(), columns.collect(), &options)
            .map_err(|error| segment.contradicts(index, error))?;
        self.ready.extend(ranges.into_iter().map(|rows| batch.slice(rows.start, rows.len())));
        Ok(())
    }
}

impl Iterator for Steps {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(batch) = self.ready.pop_front() {
                return Some(Ok(batch));
            }
            if self.batch >= self.run.segments.get(self.segment)?.batches.len() {
                (self.segment, self.batch) = (self.segment + 1, 0);
                continue;
            }
            if let Err(error) = self.read() {
                return Some(Err(error));
            }
        }
    }
}
