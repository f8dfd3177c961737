//! Tests of the member map on a made-up clock.

use super::*;
use crate::record::{Load, Rates, WorkerState};

const TTL: Duration = Duration::from_secs(3);

fn registration(boot_id: BootId) -> Arc<Registration> {
    Arc::new(Registration {
        worker_id: "seven".to_owned(),
        boot_id,
        url: "http://seven:8080".to_owned(),
        version: "0.1.0".to_owned(),
        ttl_ms: 3000,
        models: Vec::new(),
        failure: None,
    })
}

fn heartbeat(boot_id: BootId, sequence: u64) -> Heartbeat {
    Heartbeat {
        boot_id,
        sequence,
        state: WorkerState::Ready,
        load: Load::default(),
        rates: Rates::default(),
        free_memory: BTreeMap::new(),
    }
}

/// A connected map with one member, and the time of its heartbeat.
fn with_member(boot: BootId) -> (MemberMap, Instant) {
    let (mut map, now) = (MemberMap::default(), Instant::now());
    map.connect(now);
    assert!(map.register(registration(boot), now));
    assert!(map.heartbeat("seven", heartbeat(boot, 1), now));
    assert_eq!(map.len(), 1);
    (map, now)
}

#[test]
fn a_member_has_a_registration_and_a_heartbeat_in_either_order() {
    let (boot, now) = (BootId::random(), Instant::now());
    let mut map = MemberMap::default();
    map.register(registration(boot), now);
    assert!(map.is_empty());
    map.heartbeat("seven", heartbeat(boot, 1), now);
    assert_eq!(map.get("seven").unwrap().heartbeat.sequence, 1);

    let mut map = MemberMap::default();
    map.connect(now);
    map.heartbeat("seven", heartbeat(boot, 1), now);
    assert!(map.is_empty());
    map.register(registration(boot), now + TTL / 2);
    assert_eq!(map.len(), 1);
    assert_eq!(map.next_deadline(), Some(now + TTL), "the time to live starts with the heartbeat");
}

#[test]
fn a_member_expires_by_the_clock_and_returns_with_a_heartbeat() {
    let boot = BootId::random();
    let (mut map, start) = with_member(boot);
    assert_eq!(map.next_deadline(), Some(start + TTL));
    map.expire(start + TTL.mul_f32(0.99));
    assert_eq!(map.len(), 1);
    assert_eq!(map.expirations(), 0);
    map.expire(start + TTL);
    assert!(map.is_empty());
    assert_eq!(map.expirations(), 1);
    // The registration outlives the heartbeat.
    assert!(map.heartbeat("seven", heartbeat(boot, 2), start + TTL * 2));
    assert_eq!(map.len(), 1);
}

#[test]
fn a_registration_is_dropped_after_its_retention() {
    let (mut map, start) = with_member(BootId::random());
    let retention = registration(BootId::random()).retention();
    map.expire(start + TTL);
    assert_eq!(map.next_deadline(), Some(start + TTL + retention));
    map.expire(start + TTL + retention);
    assert_eq!(map.next_deadline(), None);
}

#[test]
fn members_are_kept_while_the_backend_is_away() {
    let (mut map, start) = with_member(BootId::random());
    map.disconnect();
    let later = start + Duration::from_mins(10);
    map.expire(later);
    assert_eq!((map.len(), map.next_deadline(), map.is_connected()), (1, None, false));
    // After its return, workers have one time to live to reconnect.
    map.connect(later);
    map.heartbeat_expired("seven", later + TTL);
    map.expire(later + TTL.mul_f32(0.99));
    assert_eq!(map.len(), 1);
    map.expire(later + TTL);
    assert!(map.is_empty());
}

#[test]
fn an_expiry_of_the_backend_counts_once_connected_for_the_time_to_live() {
    let boot = BootId::random();
    let (mut map, start) = with_member(boot);
    let later = start + TTL * 2;
    map.heartbeat("seven", heartbeat(boot, 2), later);
    map.heartbeat_expired("seven", later + Duration::from_millis(1));
    assert!(map.is_empty());
    map.heartbeat_expired("unknown", later);
    assert_eq!(map.expirations(), 1);
}

#[test]
fn sequence_numbers_only_grow() {
    let boot = BootId::random();
    let (mut map, now) = with_member(boot);
    assert!(map.heartbeat("seven", heartbeat(boot, 5), now));
    for stale in [5, 4, 0] {
        assert!(!map.heartbeat("seven", heartbeat(boot, stale), now + TTL / 2));
    }
    let member = map.get("seven").unwrap();
    assert_eq!((member.heartbeat.sequence, member.received), (5, now));
    // A stale heartbeat does not extend the time to live.
    assert_eq!(map.next_deadline(), Some(now + TTL));
}

#[test]
fn a_stale_boot_never_replaces_a_newer_one() {
    let (old, new) = (BootId::at(1), BootId::at(2));
    let (mut map, now) = with_member(old);
    assert!(map.heartbeat("seven", heartbeat(new, 1), now));
    assert!(map.is_empty(), "the registration of the new boot follows");
    assert!(!map.register(registration(old), now));
    assert!(map.register(registration(new), now));
    assert!(!map.register(registration(old), now));
    assert!(!map.heartbeat("seven", heartbeat(old, 99), now));
    assert_eq!(map.get("seven").unwrap().registration.boot_id, new);
}

#[test]
fn an_older_boot_returns_once_the_newer_one_is_gone() {
    let (old, new) = (BootId::at(1), BootId::at(2));
    let (mut map, now) = with_member(new);
    // The backend let it register, but this watcher still sees the newer boot.
    assert!(!map.register(registration(old), now));
    assert!(!map.heartbeat("seven", heartbeat(old, 1), now));
    map.expire(now + TTL);
    assert!(map.heartbeat("seven", heartbeat(old, 2), now + TTL));
    assert_eq!(map.get("seven").unwrap().registration.boot_id, old);

    map.deregister("seven");
    assert!(map.is_empty());
    assert_eq!(map.next_deadline(), None);
}
