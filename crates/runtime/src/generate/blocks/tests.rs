//! Tests of the block pool: sharing, eviction, and its invariants under random use.

use proptest::prelude::*;

use super::*;

const SCOPE: u64 = 1;

fn ids(range: std::ops::Range<u32>) -> Vec<u32> {
    range.collect()
}

/// A table for `ids` with its full blocks in the prefix cache.
fn computed(pool: &mut BlockPool, scope: u64, ids: &[u32]) -> BlockTable {
    let mut table = pool.share(scope, ids, ids.len());
    assert_eq!(pool.grow(&mut table, ids.len()), Ok(None));
    pool.index(&mut table, scope, ids, ids.len());
    table
}

impl BlockPool {
    /// Checks every invariant against the tables in use.
    fn check(&self, tables: &[&BlockTable]) {
        let mut holders = vec![0; self.total()];
        tables.iter().flat_map(|table| table.blocks()).for_each(|&block| holders[block as usize] += 1);
        let mut free = vec![0; self.total()];
        self.free.iter().chain(self.evictable.values()).for_each(|&block| free[block as usize] += 1);
        for (at, block) in self.blocks.iter().enumerate() {
            assert_eq!(block.references, holders[at], "references of block {at}");
            assert_eq!(free[at], usize::from(holders[at] == 0), "block {at} is free or held");
            assert_eq!(block.key.is_some(), block.serial != ROOT);
            let indexed = block.key.as_ref().map(|key| self.index.get(key));
            assert!(indexed.is_none_or(|found| found == Some(&(at as u32))), "index of block {at}");
        }
        assert!(self.free.iter().all(|&block| self.blocks[block as usize].key.is_none()));
        assert!(self.evictable.values().all(|&block| self.blocks[block as usize].key.is_some()));
        let cached = self.blocks.iter().filter(|block| block.key.is_some()).count();
        assert_eq!(self.index.len(), cached);
        for table in tables {
            assert_eq!(table.blocks.len(), self.blocks_for(table.tokens));
        }
    }
}

#[test]
fn blocks_of_prompts_and_of_generated_tokens_are_kept_apart_where_they_differ() {
    for separates in [false, true] {
        let mut pool = BlockPool::new(8, 4).separating_prompts(separates);
        let tokens = ids(0..12);
        let mut table = pool.share(SCOPE, &tokens, 6);
        assert_eq!(pool.grow(&mut table, tokens.len()), Ok(None));
        // A prompt of six tokens, and six generated ones.
        pool.index(&mut table, SCOPE, &tokens, 6);
        let found = |prompt: usize| pool.lookup(SCOPE, &tokens, prompt).len();
        assert_eq!([6, 12, 4, 0].map(found), if separates { [3, 1, 1, 0] } else { [3; 4] });
    }
}

#[test]
fn tables_grow_on_demand_and_return_their_blocks() {
    let mut pool = BlockPool::new(4, 4);
    let mut table = BlockTable::default();
    assert_eq!(pool.grow(&mut table, 5), Ok(None));
    assert_eq!((table.blocks(), table.tokens(), pool.free()), (&[0, 1][..], 5, 2));
    assert_eq!(pool.grow(&mut table, 8), Ok(None));
    assert_eq!((table.blocks().len(), pool.max_tokens(&table)), (2, 16));
    let error = pool.grow(&mut table, 17).unwrap_err();
    assert_eq!(error.to_string(), "the KV cache has too few free blocks: 3 are needed, 2 are free");
    assert_eq!(table.tokens(), 8);
    pool.check(&[&table]);
    pool.release(&mut table);
    assert_eq!((table.tokens(), pool.free(), pool.cached()), (0, 4, 0));
}

#[test]
fn a_fork_copies_a_shared_partial_block_on_write() {
    let mut pool = BlockPool::new(4, 4);
    let mut first = BlockTable::default();
    pool.grow(&mut first, 6).unwrap();
    let mut second = pool.fork(&first);
    assert_eq!((pool.free(), pool.max_tokens(&second)), (2, 12));
    assert_eq!(pool.grow(&mut second, 7), Ok(Some(BlockCopy { source: 1, destination: 2 })));
    assert_eq!(second.blocks(), [0, 2]);
    assert_eq!(pool.grow(&mut first, 7), Ok(None), "the first is the only holder now");
    pool.check(&[&first, &second]);
}

#[test]
fn a_fork_of_full_blocks_copies_nothing() {
    let mut pool = BlockPool::new(4, 4);
    let mut first = BlockTable::default();
    pool.grow(&mut first, 8).unwrap();
    let mut second = pool.fork(&first);
    assert_eq!(pool.grow(&mut second, 9), Ok(None));
    assert_eq!(second.blocks(), [0, 1, 2]);
}

#[test]
fn a_copy_needs_a_free_block() {
    let mut pool = BlockPool::new(1, 4);
    let mut first = BlockTable::default();
    pool.grow(&mut first, 2).unwrap();
    let mut second = pool.fork(&first);
    assert_eq!(pool.max_tokens(&second), 2);
    assert_eq!(pool.grow(&mut second, 3), Err(OutOfBlocks { need: 1, free: 0 }));
}

#[test]
fn released_prefixes_are_found_again_in_their_scope_alone() {
    let mut pool = BlockPool::new(8, 4);
    let mut table = computed(&mut pool, SCOPE, &ids(0..10));
    let blocks = table.blocks()[..2].to_vec();
    pool.release(&mut table);
    assert_eq!((pool.cached(), pool.free()), (2, 8));
    assert_eq!(pool.lookup(SCOPE, &ids(0..10), 0), blocks);
    assert_eq!(pool.lookup(SCOPE, &ids(0..7), 0), blocks[..1]);
    assert!(pool.lookup(SCOPE + 1, &ids(0..10), 0).is_empty());
    assert!(pool.lookup(SCOPE, &ids(4..8), 0).is_empty(), "a block is found after its own prefix alone");
    let table = pool.share(SCOPE, &ids(0..10), 0);
    assert_eq!((table.tokens(), pool.free()), (8, 6));
    pool.check(&[&table]);
}

#[test]
fn the_least_recently_used_prefix_is_evicted_from_its_end() {
    let mut pool = BlockPool::new(4, 4);
    for start in [0, 100] {
        let mut table = computed(&mut pool, SCOPE, &ids(start..start + 8));
        pool.release(&mut table);
    }
    let mut used = pool.share(SCOPE, &ids(0..8), 0);
    pool.release(&mut used);
    let mut table = BlockTable::default();
    pool.grow(&mut table, 4).unwrap();
    assert_eq!(pool.lookup(SCOPE, &ids(100..108), 0).len(), 1);
    assert_eq!(pool.lookup(SCOPE, &ids(0..8), 0).len(), 2);
    pool.check(&[&table]);
}

#[test]
fn a_prefix_that_was_evicted_elsewhere_is_cached_again() {
    let mut pool = BlockPool::new(4, 4);
    let prefix = ids(0..12);
    // Both sequences compute the same first block; the first one's is cached.
    let (mut first, mut second) = (BlockTable::default(), BlockTable::default());
    pool.grow(&mut first, 4).unwrap();
    pool.grow(&mut second, 8).unwrap();
    pool.index(&mut first, SCOPE, &prefix[..4], 0);
    pool.index(&mut second, SCOPE, &prefix[..4], 0);
    assert_eq!(pool.lookup(SCOPE, &prefix, 0), first.blocks());
    pool.release(&mut first);
    pool.grow(&mut second, 16).unwrap();
    assert!(pool.lookup(SCOPE, &prefix, 0).is_empty(), "the cached block is evicted");
    pool.index(&mut second, SCOPE, &prefix[..8], 0);
    assert_eq!(pool.lookup(SCOPE, &prefix, 0), second.blocks()[..2]);
    pool.check(&[&second]);
}

/// A holder of a table: its tokens, and the number of them that are computed.
struct Holder {
    table: BlockTable,
    scope: u64,
    ids: Vec<u32>,
}

/// Runs random operations and checks each lookup against the contents that were written.
fn run(blocks: u32, block_size: usize, operations: &[(u8, u8, u8)]) {
    let mut pool = BlockPool::new(blocks, block_size);
    let mut holders: Vec<Holder> = Vec::new();
    // The prefix whose keys and values each block has.
    let mut contents: Vec<(u64, Vec<u32>)> = vec![(0, Vec::new()); blocks as usize];
    for &(operation, a, b) in operations {
        let at = a as usize % holders.len().max(1);
        match operation % 5 {
            0 => {
                let scope = u64::from(a % 2);
                let ids: Vec<u32> = (0..b % 20).map(|at| u32::from(a / 2 % 2 + at / 7)).collect();
                let table = pool.share(scope, &ids, 0);
                for (index, &block) in table.blocks().iter().enumerate() {
                    let expected = (scope, ids[..(index + 1) * block_size].to_vec());
                    assert_eq!(contents[block as usize], expected, "content of a cached block");
                }
                holders.push(Holder { table, scope, ids });
            }
            1 if !holders.is_empty() => {
                let Holder { table, scope, ids } = &mut holders[at];
                let target = (table.tokens() + b as usize % 9).max(1);
                let from = table.tokens() / block_size;
                let Ok(copy) = pool.grow(table, target) else { continue };
                if let Some(BlockCopy { source, destination }) = copy {
                    assert_eq!(table.blocks()[from], destination);
                    contents[destination as usize] = contents[source as usize].clone();
                }
                while ids.len() < target {
                    ids.push(u32::from(b % 2));
                }
                for (index, &block) in table.blocks().iter().enumerate().skip(from) {
                    let end = ((index + 1) * block_size).min(target);
                    contents[block as usize] = (*scope, ids[..end].to_vec());
                }
                pool.index(table, *scope, &ids[..target], 0);
            }
            2 if !holders.is_empty() => {
                let Holder { table, scope, ids } = &holders[at];
                let (scope, ids) = (*scope, ids.clone());
                let table = pool.fork(table);
                holders.push(Holder { table, scope, ids });
            }
            3 if !holders.is_empty() => pool.release(&mut holders.swap_remove(at).table),
            _ => {}
        }
        if operations.len() < 1000 {
            pool.check(&holders.iter().map(|holder| &holder.table).collect::<Vec<_>>());
        }
    }
    for mut holder in holders {
        pool.release(&mut holder.table);
    }
    pool.check(&[]);
    assert_eq!(pool.free(), pool.total());
}

proptest! {
    #[test]
    fn invariants_hold_under_random_use(
        blocks in 1_u32..24,
        block_size in 1_usize..5,
        operations in proptest::collection::vec(any::<(u8, u8, u8)>(), 0..300),
    ) {
        run(blocks, block_size, &operations);
    }
}

#[test]
fn ten_thousand_random_cycles_leave_nothing_behind() {
    let mut state = 1_u64;
    let operations: Vec<(u8, u8, u8)> = (0..30_000)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let [a, b, c, ..] = state.to_be_bytes();
            (a, b, c)
        })
        .collect();
    run(64, 4, &operations);
}
