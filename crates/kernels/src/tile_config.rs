//! The configuration of a thread's AMX tile registers.

use std::arch::asm;

/// A configuration of the eight tile registers.
#[repr(C, align(64))]
#[derive(Clone, Copy, Default)]
pub(crate) struct TileConfig {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl TileConfig {
    /// Eight tiles of 16 rows by 64 bytes.
    pub(crate) fn full() -> TileConfig {
        let mut config = TileConfig { palette: 1, ..TileConfig::default() };
        (0..8).for_each(|tile| config.set(tile, 16, 64));
        config
    }

    /// Sets the size of one tile.
    pub(crate) fn set(&mut self, tile: usize, rows: u8, row_bytes: u16) {
        self.rows[tile] = rows;
        self.row_bytes[tile] = row_bytes;
    }

    /// The configuration of this thread; all zeros if its tiles are released.
    ///
    /// # Safety
    /// The processor has AMX, and the process may use it.
    pub(crate) unsafe fn current() -> TileConfig {
        let mut config = TileConfig::default();
        // SAFETY: the caller guarantees the instruction; the 64 bytes written are the structure's.
        unsafe {
            asm!("sttilecfg [{0}]", in(reg) &raw mut config, options(nostack, preserves_flags));
        }
        config
    }

    /// Configures this thread's tiles, and sets them to zero. All zeros release them.
    ///
    /// # Safety
    /// The processor has AMX, and the process may use it.
    pub(crate) unsafe fn load(&self) {
        // SAFETY: the caller guarantees the instruction; the 64 bytes read are the structure's.
        unsafe {
            asm!("ldtilecfg [{0}]", in(reg) self, options(nostack, readonly, preserves_flags));
        }
    }
}
