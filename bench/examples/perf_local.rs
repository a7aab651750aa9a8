//! Local.
use std::path::Path;
use std::time::Instant;
fn cpu() -> f64 {
    let t = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    t.split(' ').next().unwrap().parse::<f64>().unwrap() / 1e9
}
fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().collect();
    let dir = Path::new(&args[2]);
    match args[1].as_str() {
        "make" => {
            let binaries = testkit::PgBinaries::at(Path::new("/opt/strandline/postgresql/17.11.0/bin"))?;
            std::fs::create_dir_all(dir)?;
            testkit::OrdinaryUser::current()?.own(dir)?;
            let load = bench::wal_load::WalLoad::make(&binaries, dir, 20, args[3].parse()?)?;
            println!("{:?}", load.wal);
        }
        "redo" => {
            let wal = bench::wal_load::RecordedWal::open(&dir.join("base"), &dir.join("server/pgdata/pg_wal"))?;
            let segments = wal.segments()?;
            for _ in 0..args[3].parse::<u32>()? {
                let (c, t) = (cpu(), Instant::now());
                let done = bench::redo::replay(&wal, &segments)?;
                let c = cpu() - c;
                println!("{done:?} elapsed {:.2} cpu {c:.2}: {:.3} M/s", t.elapsed().as_secs_f64(), done.records as f64 / 1e6 / c);
            }
        }
        _ => {}
    }
    Ok(())
}
