//! A directory of stubs with its map and page server, and programs under the shim in it. Every word of a
//! page names the page and a version.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use shim_abi::builder::MapBuilder;

use crate::page_server::{PageServer, shim_library};

pub const DB: u32 = 5;
pub const RELS: [u32; 4] = [16384, 16385, 16386, 16387];
pub const PAGE: usize = 8192;
const SYSTEM: u64 = 4711;

pub fn word(rel: u32, block: u32, version: u32) -> u64 {
    u64::from(rel & 0xFFFF) << 48
        | u64::from(block & 0xFF_FFFF) << 24
        | u64::from(version & 0xFF_FFFF)
}

pub fn page(rel: u32, block: u32, version: u32) -> Vec<u8> {
    word(rel, block, version).to_le_bytes().repeat(PAGE / 8)
}

/// Stubs of `blocks` blocks each, and a server of version 1 of every page.
pub fn stage(path: &Path, blocks: u32, cache_limit: u64) -> PageServer {
    fs::create_dir_all(path.join(format!("base/{DB}"))).unwrap();
    let socket = path.join("pages.sock");
    let endpoint = format!("unix:{}", socket.display());
    let mut map = MapBuilder::new(SYSTEM, 15, 0x5000, endpoint, cache_limit, 20_000);
    map.data_directory(path);
    for rel in RELS {
        let stub = File::create(path.join(format!("base/{DB}/{rel}"))).unwrap();
        stub.set_len(u64::from(blocks) * PAGE as u64).unwrap();
        map.add(1663, DB, rel, 0, blocks);
    }
    map.write(&path.join("shim.map")).unwrap();
    PageServer::start(
        &socket,
        SYSTEM,
        Arc::new(move |get, block| {
            assert!(block < blocks && get.lsn == 0x5000);
            Some(page(get.rel, block, 1))
        }),
    )
}

/// Runs this test program again, under the shim and with `STAGE_PART` set; whether it succeeded.
pub fn preloaded(path: &Path, part: &str) -> bool {
    Command::new(std::env::current_exe().unwrap())
        .env("LD_PRELOAD", shim_library())
        .env("STRANDLINE_SHIM_MAP", path.join("shim.map"))
        .env("STAGE_PART", part)
        .current_dir(path)
        .status()
        .unwrap()
        .success()
}
