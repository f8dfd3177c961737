//! Accounting of the paged KV cache: blocks, block tables and the prefix cache.

use std::collections::{BTreeMap, HashMap};

/// Index of a block in the KV cache.
pub(crate) type BlockId = u32;

/// Serial number of the empty prefix.
const ROOT: u64 = 0;

/// A copy of a block's keys and values, to be made before the next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockCopy {
    pub(crate) source: BlockId,
    pub(crate) destination: BlockId,
}

/// Error: the pool has too few free blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the KV cache has too few free blocks: {need} are needed, {free} are free")]
pub(crate) struct OutOfBlocks {
    pub(crate) need: usize,
    pub(crate) free: usize,
}

/// The blocks of a sequence. [`BlockPool::release`] returns them; a dropped table leaks its blocks.
#[derive(Debug, Default)]
pub(crate) struct BlockTable {
    blocks: Vec<BlockId>,
    /// Number of tokens that the sequence may write.
    tokens: usize,
    /// Number of leading blocks whose prefixes are in the prefix cache, and the last of these prefixes.
    indexed: usize,
    prefix: Prefix,
}

impl BlockTable {
    /// The blocks: position `p` is in block `p / block_size`.
    pub(crate) fn blocks(&self) -> &[BlockId] {
        &self.blocks
    }

    /// Number of tokens that the sequence may write.
    pub(crate) fn tokens(&self) -> usize {
        self.tokens
    }
}

/// A prefix in the prefix cache: its last block, and the serial number that this block had then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Prefix {
    block: BlockId,
    serial: u64,
}

/// Identity of a cached block: scope, prefix and tokens. The prefix is a serial number, which is never used twice, so that
/// equal keys mean equal tokens from the start. Hash collisions can't confuse blocks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    scope: u64,
    parent: u64,
    ids: Box<[u32]>,
    /// Number of prompt tokens among them, if these are computed by another kernel than generated ones.
    prompt: usize,
}

#[derive(Debug, Default)]
struct Block {
    /// Number of tables that hold the block.
    references: usize,
    /// Serial number and key, if the block is in the prefix cache.
    serial: u64,
    key: Option<Key>,
    /// Time of the release, if the block is cached and in no table.
    released: u64,
}

/// A fixed number of blocks of `block_size` tokens, with reference counts and a prefix cache.
///
/// A block without references is free. A free block keeps its content and stays in the prefix cache until it is allocated
/// again: blocks without content first, then the least recently used.
#[derive(Debug)]
pub(crate) struct BlockPool {
    block_size: usize,
    /// Whether blocks of prompt tokens and of generated tokens differ.
    separates_prompts: bool,
    blocks: Vec<Block>,
    /// Free blocks that are not cached.
    free: Vec<BlockId>,
    /// Free blocks that are cached, by the time of their release.
    evictable: BTreeMap<u64, BlockId>,
    index: HashMap<Key, BlockId>,
    clock: u64,
    serials: u64,
}

impl BlockPool {
    /// A pool of `blocks` free blocks. `block_size` is at least 1.
    pub(crate) fn new(blocks: u32, block_size: usize) -> Self {
        Self {
            block_size: block_size.max(1),
            separates_prompts: false,
            blocks: (0..blocks).map(|_| Block::default()).collect(),
            free: (0..blocks).rev().collect(),
            evictable: BTreeMap::new(),
            index: HashMap::new(),
            clock: 0,
            serials: ROOT,
        }
    }

    /// The same pool, which keeps blocks of prompt tokens apart from those of generated tokens if `separates` says so.
    pub(crate) fn separating_prompts(self, separates: bool) -> Self {
        Self { separates_prompts: separates, ..self }
    }

    /// Tokens per block.
    pub(crate) fn block_size(&self) -> usize {
        self.block_size
    }

    /// Number of blocks.
    pub(crate) fn total(&self) -> usize {
        self.blocks.len()
    }

    /// Number of blocks that can be allocated, including cached ones.
    pub(crate) fn free(&self) -> usize {
        self.free.len() + self.evictable.len()
    }

    /// Number of blocks in the prefix cache.
    pub(crate) fn cached(&self) -> usize {
        self.index.len()
    }

    /// Number of blocks for `tokens` tokens.
    pub(crate) fn blocks_for(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.block_size)
    }

    /// The longest length to which `table` can grow.
    pub(crate) fn max_tokens(&self, table: &BlockTable) -> usize {
        match self.free().checked_sub(usize::from(self.shared_tail(table).is_some())) {
            Some(free) => (table.blocks.len() + free) * self.block_size,
            None => table.tokens,
        }
    }

    /// Grows `table` to `tokens` tokens. If its last block is partial and shared, the table gets a block of its own, and the
    /// content must be copied. On error, nothing changes.
    pub(crate) fn grow(
        &mut self,
        table: &mut BlockTable,
        tokens: usize,
    ) -> Result<Option<BlockCopy>, OutOfBlocks> {
        if tokens <= table.tokens {
            return Ok(None);
        }
        let shared = self.shared_tail(table);
        let missing = self.blocks_for(tokens).saturating_sub(table.blocks.len());
        let need = missing + usize::from(shared.is_some());
        if need > self.free() {
            return Err(OutOfBlocks { need, free: self.free() });
        }
        let copy = shared.and_then(|source| {
            let destination = self.allocate()?;
            table.blocks.pop();
            table.blocks.push(destination);
            self.drop_reference(source);
            Some(BlockCopy { source, destination })
        });
        table.blocks.extend((0..missing).map_while(|_| self.allocate()));
        table.tokens = tokens;
        Ok(copy)
    }

    /// A second table with the same blocks.
    pub(crate) fn fork(&mut self, table: &BlockTable) -> BlockTable {
        for &block in &table.blocks {
            self.blocks[block as usize].references += 1;
        }
        BlockTable { blocks: table.blocks.clone(), ..*table }
    }

    /// Releases the blocks of `table` and empties it. Its cached blocks stay in the prefix cache.
    pub(crate) fn release(&mut self, table: &mut BlockTable) {
        // The end of a sequence is evicted before its beginning, which other sequences are more likely to share.
        for block in std::mem::take(table).blocks.into_iter().rev() {
            self.drop_reference(block);
        }
    }

    /// The key of the block at `at` of a sequence with the tokens `ids`, of which `prompt` are its prompt.
    fn key(&self, (scope, parent): (u64, u64), at: usize, ids: &[u32], prompt: usize) -> Key {
        let first = at * self.block_size;
        let prompt =
            if self.separates_prompts { prompt.saturating_sub(first).min(self.block_size) } else { 0 };
        Key { scope, parent, ids: ids[first..first + self.block_size].into(), prompt }
    }

    /// The cached blocks of the longest prefix of `ids` in `scope`, of which the first `prompt` are the prompt.
    pub(crate) fn lookup(&self, scope: u64, ids: &[u32], prompt: usize) -> Vec<BlockId> {
        let mut parent = ROOT;
        let cached = (0..ids.len() / self.block_size).map_while(|at| {
            let block = *self.index.get(&self.key((scope, parent), at, ids, prompt))?;
            parent = self.blocks[block as usize].serial;
            Some(block)
        });
        cached.collect()
    }

    /// A table with the cached blocks of the longest prefix of `ids` in `scope`.
    pub(crate) fn share(&mut self, scope: u64, ids: &[u32], prompt: usize) -> BlockTable {
        let blocks = self.lookup(scope, ids, prompt);
        for &id in &blocks {
            let block = &mut self.blocks[id as usize];
            if block.references == 0 {
                self.evictable.remove(&block.released);
            }
            block.references += 1;
        }
        let last = blocks.last().copied();
        BlockTable {
            tokens: blocks.len() * self.block_size,
            indexed: blocks.len(),
            prefix: last.map_or_else(Prefix::default, |block| self.prefix(block)),
            blocks,
        }
    }

    /// Adds the full blocks of `table` to the prefix cache. `ids` are the computed tokens of the sequence from its start,
    /// of which the first `prompt` are the prompt.
    pub(crate) fn index(&mut self, table: &mut BlockTable, scope: u64, ids: &[u32], prompt: usize) {
        let full = (ids.len() / self.block_size).min(table.blocks.len());
        if table.indexed >= full {
            return;
        }
        if table.indexed > 0 && self.prefix(table.prefix.block) != table.prefix {
            // The prefix was cached in the block of another sequence, and that block is evicted.
            (table.indexed, table.prefix) = (0, Prefix::default());
        }
        for at in table.indexed..full {
            let key = self.key((scope, table.prefix.serial), at, ids, prompt);
            let block = match self.index.get(&key) {
                Some(&block) => block,
                None => self.insert(table.blocks[at], key),
            };
            table.prefix = self.prefix(block);
        }
        table.indexed = full;
    }

    fn prefix(&self, block: BlockId) -> Prefix {
        Prefix { block, serial: self.blocks[block as usize].serial }
    }

    /// Adds a block to the prefix cache, or moves it there to another key.
    fn insert(&mut self, block: BlockId, key: Key) -> BlockId {
        self.forget(block);
        self.serials += 1;
        let entry = &mut self.blocks[block as usize];
        (entry.serial, entry.key) = (self.serials, Some(key.clone()));
        self.index.insert(key, block);
        block
    }

    /// Removes a block from the prefix cache.
    fn forget(&mut self, block: BlockId) {
        let entry = &mut self.blocks[block as usize];
        entry.serial = ROOT;
        if let Some(key) = entry.key.take() {
            self.index.remove(&key);
        }
    }

    /// The last block, if it is partial and other tables hold it.
    fn shared_tail(&self, table: &BlockTable) -> Option<BlockId> {
        let &last = table.blocks.last()?;
        let is_partial = table.tokens < table.blocks.len() * self.block_size;
        (is_partial && self.blocks[last as usize].references > 1).then_some(last)
    }

    /// A block with one reference, evicted from the prefix cache if need be.
    fn allocate(&mut self) -> Option<BlockId> {
        let block = match self.free.pop() {
            Some(block) => block,
            None => self.evictable.pop_first()?.1,
        };
        self.forget(block);
        self.blocks[block as usize].references = 1;
        Some(block)
    }

    fn drop_reference(&mut self, block: BlockId) {
        let entry = &mut self.blocks[block as usize];
        entry.references -= 1;
        if entry.references > 0 {
            return;
        }
        if entry.key.is_none() {
            self.free.push(block);
            return;
        }
        self.clock += 1;
        entry.released = self.clock;
        self.evictable.insert(self.clock, block);
    }
}

#[cfg(test)]
mod tests;
