//! Tests of fair queueing between tenants.

use super::*;
use crate::schedule::next_batch::LOOKAHEAD;

/// Tenant and index of every text, in the order in which they are taken.
fn drained(list: &mut List) -> Vec<(u64, usize)> {
    let all: Vec<usize> = (0..list.len()).collect();
    list.take(&all).iter().map(|entry| (entry.job.tenant.0, entry.index)).collect()
}

fn list(jobs: &[(u64, &[usize])]) -> List {
    let mut list = List::default();
    for (tenant, lengths) in jobs {
        list.admit(&of(*tenant, lengths, Priority::Bulk));
    }
    list
}

#[test]
fn texts_are_ordered_by_virtual_finish_time() {
    // Finish times of the first tenant are 10, 20 and 30, of the second 15 and 20: ties keep their order of arrival.
    let mut both = list(&[(1, &[10, 10, 10]), (2, &[15, 5])]);
    assert_eq!(drained(&mut both), [(1, 0), (2, 0), (1, 1), (2, 1), (1, 2)]);
    let mut same = list(&[(1, &[10, 10]), (1, &[5])]);
    let jobs: Vec<usize> = drained(&mut same).iter().map(|&(_, index)| index).collect();
    assert_eq!(jobs, [0, 1, 0], "a tenant's texts keep their order of arrival");
}

#[test]
fn a_tenant_that_comes_later_gets_no_credit_for_the_time_before() {
    let mut list = list(&[(1, &[10; 5])]);
    list.take(&[0, 1]);
    list.admit(&of(2, &[10; 3], Priority::Bulk));
    assert_eq!(drained(&mut list), [(2, 0), (1, 2), (2, 1), (1, 3), (2, 2), (1, 4)]);
}

#[test]
fn every_token_is_counted_for_its_tenant_until_it_is_dequeued() {
    let mut list = list(&[(1, &[10, 20, 30]), (2, &[7])]);
    let counts = |list: &List| (list.len(), list.tokens(), list.share(TenantId(1)), list.share(TenantId(2)));
    assert_eq!(counts(&list), (4, 67, (60, 2), (7, 2)));
    assert_eq!(list.share(TenantId(3)), (0, 3), "counted among the tenants that it would join");
    // Finish times are 10, 30, 60 and 7.
    let first = list.take(&[0, 2]);
    assert_eq!(first.iter().map(Entry::tokens).collect::<Vec<_>>(), [7, 20]);
    assert_eq!(counts(&list), (2, 40, (40, 1), (0, 2)));
    assert!(list.take(&[]).is_empty());
    assert_eq!(list.waiting().iter().map(|text| text.tokens).collect::<Vec<_>>(), [10, 30]);
    assert_eq!(list.purge(), 0);
    first[1].job.cancel();
    assert_eq!(list.purge(), 40);
    assert_eq!(counts(&list), (0, 0, (0, 1), (0, 1)));
}

#[test]
fn no_more_than_the_lookahead_is_considered() {
    let list = list(&[(1, &vec![1; LOOKAHEAD + 5])]);
    assert_eq!((list.len(), list.waiting().len()), (LOOKAHEAD + 5, LOOKAHEAD));
}
