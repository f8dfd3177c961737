//! Buckets of sequences of similar length, for engines that pad.

/// Groups sequences into buckets in which padding to the longest adds at most an eighth.
pub(crate) fn length_buckets(lengths: &[usize]) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..lengths.len()).collect();
    order.sort_by_key(|&member| lengths[member]);
    let mut buckets: Vec<Vec<usize>> = Vec::new();
    let mut tokens = 0;
    for member in order {
        let length = lengths[member];
        match buckets.last_mut() {
            Some(bucket) if 8 * (bucket.len() + 1) * length <= 9 * (tokens + length) => {
                bucket.push(member);
                tokens += length;
            }
            Some(_) | None => {
                buckets.push(vec![member]);
                tokens = length;
            }
        }
    }
    buckets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_hold_every_sequence_once_and_pad_little() {
        let lengths = [512, 3, 3, 17, 511, 1, 16, 300, 18, 2];
        let buckets = length_buckets(&lengths);
        let mut members: Vec<usize> = buckets.iter().flatten().copied().collect();
        members.sort_unstable();
        assert_eq!(members, (0..lengths.len()).collect::<Vec<_>>());
        for bucket in &buckets {
            let longest = bucket.iter().map(|&m| lengths[m]).max().expect("not empty");
            let tokens: usize = bucket.iter().map(|&m| lengths[m]).sum();
            assert!(8 * longest * bucket.len() <= 9 * tokens, "{bucket:?}");
        }
    }
}
