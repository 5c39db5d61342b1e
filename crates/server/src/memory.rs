//! How much memory this process may use: that of the machine, or less in a control group.

use std::path::{Path, PathBuf};

const CACHE_MIN: u64 = 16 << 20;
const CACHE_MAX: u64 = 512 << 20;

/// What the store's cache gets when nobody says otherwise: a quarter of the memory, within bounds.
pub(crate) fn usual_cache() -> u64 {
    cache_of(limit(Path::new("/")))
}

fn cache_of(memory: Option<u64>) -> u64 {
    memory.map_or(CACHE_MIN, |memory| (memory / 4).clamp(CACHE_MIN, CACHE_MAX))
}

/// The smallest limit that holds for this process; `root` is where the file system begins.
fn limit(root: &Path) -> Option<u64> {
    let read = |path: PathBuf| std::fs::read_to_string(path).ok();
    let machine = read(root.join("proc/meminfo")).as_deref().and_then(total);
    let group = read(root.join("proc/self/cgroup")).as_deref().and_then(group);
    let groups = group.iter().flat_map(|group| group.ancestors());
    let limits = groups.filter_map(|group| {
        let group = group.strip_prefix("/").unwrap_or(group);
        // Either a number or the word max.
        read(root.join("sys/fs/cgroup").join(group).join("memory.max"))?.trim().parse().ok()
    });
    machine.into_iter().chain(limits).min()
}

fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim_end().parse().ok()?;
    kibibytes.checked_mul(1024)
}

/// The path of the one hierarchy that is left in our days.
fn group(groups: &str) -> Option<PathBuf> {
    groups.lines().find_map(|line| line.strip_prefix("0::")).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        root
    }

    const MEMORY: (&str, &str) = ("proc/meminfo", "MemFree: 1 kB\nMemTotal:       8000000 kB\n");
    const GROUP: (&str, &str) = ("proc/self/cgroup", "0::/system.slice/lockd.service\n");

    #[test]
    fn the_smallest_limit_holds() {
        let service = "sys/fs/cgroup/system.slice/lockd.service/memory.max";
        for (files, expected) in [
            (vec![], None),
            (vec![MEMORY], Some(8_000_000 * 1024)),
            (vec![MEMORY, GROUP, (service, "max\n")], Some(8_000_000 * 1024)),
            (vec![MEMORY, GROUP, (service, "268435456\n")], Some(256 << 20)),
            (
                vec![
                    MEMORY,
                    GROUP,
                    (service, "268435456\n"),
                    ("sys/fs/cgroup/system.slice/memory.max", "134217728\n"),
                ],
                Some(128 << 20),
            ),
            (
                vec![MEMORY, ("proc/self/cgroup", "0::/\n"), ("sys/fs/cgroup/memory.max", "4096")],
                Some(4096),
            ),
        ] {
            assert_eq!(limit(machine(&files).path()), expected, "{files:?}");
        }
    }

    #[test]
    fn the_cache_is_a_quarter_within_bounds() {
        assert_eq!(cache_of(None), CACHE_MIN);
        assert_eq!(cache_of(Some(1 << 20)), CACHE_MIN);
        assert_eq!(cache_of(Some(1 << 30)), 256 << 20);
        assert_eq!(cache_of(Some(64 << 30)), CACHE_MAX);
        assert!((CACHE_MIN..=CACHE_MAX).contains(&usual_cache()));
    }
}
