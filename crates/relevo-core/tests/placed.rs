//! Observations that lie on the policy's device: here it is the CPU, whose memory may be given as that of any other device. What is
//! in the block is then another matter.

#![expect(unsafe_code, reason = "what lies on a device has an address")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::{ptr, slice, sync::Arc};

use common::{
    act, agent, floats, flushed,
    made::{Made, spec, tensor},
    observe, outcome,
};
use relevo_core::{
    Error, Result,
    policy::{HeadKind, Normalizer, PolicyOptions, PolicySlot},
    runtime::{ActCall, ActOptions, ActorGroup, Agent, FinalObservations, Recording},
    spec::DType,
    tensor::{DeviceId, DeviceMemory, as_bytes},
};

const RECORD: ActOptions<'_> = ActOptions { deterministic: None, record: Recording::All };
const UNRECORDED: ActOptions<'_> = ActOptions { deterministic: None, record: Recording::Nothing };
const FAILS_ON: f32 = -77.0;

/// A model that gives what it finds at the address of its input.
fn echo() -> Made {
    Made::new(vec![spec("obs", DType::Float32, &[-1, 2])], vec![spec("action", DType::Float32, &[-1, 2])], |inputs| {
        let memory = inputs[0].memory(DeviceId::CPU);
        let address = ptr::with_exposed_provenance::<f32>(memory.address());
        // SAFETY: whoever calls lends so many bytes of the CPU's memory for the call.
        let values = unsafe { slice::from_raw_parts(address, memory.len() / 4) };
        assert_eq!(values.len(), inputs[0].shape[0] * 2, "what lies nowhere");
        if values.contains(&FAILS_ON) {
            return Err(Error::Inference("the model was told to fail".into()));
        }
        Ok(vec![tensor(inputs[0].shape, |at| values[at])])
    })
}

fn all(agent: &Agent) -> Arc<ActorGroup> {
    agent.group(&agent.actor_ids().unwrap()).unwrap()
}

/// A call that is ready to be filled.
fn begun(group: &Arc<ActorGroup>) -> ActCall<'_> {
    let mut call = group.try_begin().unwrap().unwrap();
    if call.needs_preparation(false) {
        call.prepare(false).unwrap();
    }
    call
}

/// The actions for observations that lie on the device, with a copy in the block where there is one.
fn act_there(
    group: &Arc<ActorGroup>,
    there: &[f32],
    copy: Option<&[f32]>,
    options: &ActOptions<'_>,
) -> Result<Vec<f32>> {
    let mut call = begun(group);
    call.place_observations(0, DeviceMemory::of_bytes(as_bytes(there)), copy.map(as_bytes))?;
    call.run(options).map(|results| results.actions[0].values::<f32>().to_vec())
}

fn earn(group: &Arc<ActorGroup>, terminated: &[u8]) {
    observe(group, &outcome(&[1.0, 1.0], terminated, &[0, 0]), &FinalObservations::default()).unwrap();
}

#[test]
fn the_policy_reads_them_where_they_lie() {
    let agent = agent(vec![echo().slot("default").unwrap()], 2, 0);
    let group = all(&agent);
    assert_eq!(group.device(), DeviceId::CPU);
    act(&group, &[9.0; 4], None, &RECORD).unwrap();
    assert!(begun(&group).reads_in_place(DeviceId::CPU));
    assert!(!begun(&group).keeps_observations(Recording::All), "nothing is recorded");
    assert_eq!(act_there(&group, &[1.0, 2.0, 3.0, 4.0], None, &RECORD).unwrap(), [1.0, 2.0, 3.0, 4.0]);
    // Beside a copy, they are read there as well.
    let poison = [9.0; 4];
    assert_eq!(act_there(&group, &[5.0, 6.0, 7.0, 8.0], Some(&poison), &RECORD).unwrap(), [5.0, 6.0, 7.0, 8.0]);
    assert_eq!(act(&group, &[4.0; 4], None, &RECORD).unwrap().actions[0].values::<f32>(), [4.0; 4]);
}

#[test]
fn a_failure_is_the_row_s_alone_that_causes_it() {
    let agent = agent(vec![echo().slot("default").unwrap()], 2, 0);
    let group = all(&agent);
    let failure = act_there(&group, &[1.0, 2.0, FAILS_ON, 4.0], None, &RECORD).unwrap_err();
    assert_eq!(failure.actor(), Some(agent.actor_ids().unwrap()[1]), "{failure}");
}

#[test]
fn nan_is_refused_in_a_copy() {
    let agent = agent(vec![echo().slot("default").unwrap()], 2, 0);
    let group = all(&agent);
    let refused = act_there(&group, &[0.0; 4], Some(&[1.0, 2.0, 3.0, f32::NAN]), &RECORD).unwrap_err();
    assert!(refused.to_string().contains("NaN"), "{refused}");
    assert_eq!(refused.actor(), Some(agent.actor_ids().unwrap()[1]));
}

#[test]
fn what_is_recorded_is_the_copy_and_nothing_without_one() {
    let agent = agent(vec![echo().slot("default").unwrap()], 2, 10);
    let group = all(&agent);
    let of_both = [1.0, 2.0, 3.0, 4.0];
    assert!(begun(&group).keeps_observations(Recording::All));
    assert!(!begun(&group).keeps_observations(Recording::Nothing));
    // The first episode is recorded, the second is asked not to be, and of the third there is nothing to record.
    act_there(&group, &of_both, Some(&of_both), &RECORD).unwrap();
    earn(&group, &[1, 1]);
    act_there(&group, &[8.0; 4], None, &UNRECORDED).unwrap();
    earn(&group, &[1, 1]);
    act_there(&group, &[9.0; 4], None, &RECORD).unwrap();
    earn(&group, &[1, 1]);
    // The next one is whole again.
    act(&group, &[6.0; 4], None, &RECORD).unwrap();
    earn(&group, &[1, 1]);
    let mut seen: Vec<_> = flushed(&agent).iter().map(|episode| floats(&episode.observations[0]).to_vec()).collect();
    seen.sort_by(|left, right| left.partial_cmp(right).unwrap());
    assert_eq!(seen, [[1.0, 2.0], [3.0, 4.0], [6.0, 6.0], [6.0, 6.0]]);
}

#[test]
fn a_batch_in_parts_reads_each_part_in_its_place() {
    // Row by row: the second pass begins two numbers further.
    let mut made = echo();
    made.inputs = vec![spec("obs", DType::Float32, &[1, 2])];
    made.outputs = vec![spec("action", DType::Float32, &[1, 2])];
    let agent = agent(vec![made.slot("default").unwrap()], 3, 0);
    let group = all(&agent);
    let there = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
    assert_eq!(act_there(&group, &there, None, &RECORD).unwrap(), there);
}

#[test]
fn where_they_are_not_read_in_place_they_are_refused() {
    let refused = |agent: &Agent, device: DeviceId| {
        let group = all(agent);
        let there = [0.0_f32; 4];
        let bytes = as_bytes(&there);
        // SAFETY: the memory is never read, as no policy runs on another device than the CPU.
        let memory = unsafe { DeviceMemory::new(device, bytes.as_ptr(), bytes.len()) };
        let mut call = begun(&group);
        assert!(!call.reads_in_place(device));
        call.place_observations(0, memory, None).unwrap_err()
    };
    let one = agent(vec![echo().slot("default").unwrap()], 2, 0);
    assert!(matches!(refused(&one, DeviceId::cuda(0)), Error::State(reason) if reason.contains("cuda:0")));

    let two = agent(vec![echo().slot("default").unwrap(), echo().slot("other").unwrap()], 2, 0);
    two.assign(&two.actor_ids().unwrap()[..1], "other").unwrap();
    assert!(matches!(refused(&two, DeviceId::CPU), Error::State(_)));

    let options = PolicyOptions {
        normalizers: [("obs".to_owned(), Normalizer::new(&[0.0; 2], &[1.0; 2], 0.0, 10.0).unwrap())].into(),
        ..PolicyOptions::with_head(HeadKind::Raw)
    };
    let normalized = PolicySlot::new("default", echo().load(), options).unwrap();
    assert!(matches!(refused(&agent(vec![Arc::new(normalized)], 2, 0), DeviceId::CPU), Error::State(_)));
}
