//! Measurements as tables.

use super::engines::OURS;
use super::markdown::{figure, table};
use super::measurement::{Series, Spread, Summary};
use super::workloads::{Setting, Workload, WorkloadKind};

/// All that was measured, in the order of the tables.
#[derive(Debug, Default)]
pub struct Results {
    entries: Vec<Entry>,
}

/// One engine with one workload in one setting.
#[derive(Debug)]
pub struct Entry {
    pub engine: &'static str,
    pub workload: &'static Workload,
    pub setting: Setting,
    pub series: Series,
}

impl Results {
    /// The entry of an engine, a workload and a setting, made if there is none yet.
    pub fn entry(
        &mut self,
        engine: &'static str,
        workload: &'static Workload,
        setting: Setting,
    ) -> &mut Entry {
        let index = self.position(engine, workload.name, setting).unwrap_or_else(|| {
            self.entries.push(Entry { engine, workload, setting, series: Series::default() });
            self.entries.len() - 1
        });
        &mut self.entries[index]
    }

    fn position(&self, engine: &str, workload: &str, setting: Setting) -> Option<usize> {
        self.entries.iter().position(|entry| {
            entry.engine == engine && entry.workload.name == workload && entry.setting == setting
        })
    }

    fn summary(&self, engine: &str, workload: &str, setting: Setting, quantity: &str) -> Option<Summary> {
        self.entries[self.position(engine, workload, setting)?].series.summary(quantity)
    }

    /// The engines that were asked for anything, in the order in which they came.
    fn engines(&self) -> Vec<&'static str> {
        distinct(self.entries.iter().map(|entry| entry.engine))
    }

    fn workloads(&self, kind: WorkloadKind) -> Vec<&'static str> {
        let of_kind = self.entries.iter().filter(|entry| entry.workload.kind == kind);
        distinct(of_kind.map(|entry| entry.workload.name))
    }

    /// One table for each quantity, each with a title.
    pub fn tables(&self) -> String {
        let mut text = String::new();
        let mut add = |title: &str, setting: Setting, columns: &[Column]| {
            let rows = self.rows(setting, columns);
            if !columns.is_empty() && !rows.is_empty() {
                let titles: Vec<&str> = columns.iter().map(|column| column.title).collect();
                let heading = [&["engine"], titles.as_slice()].concat();
                text += &format!("### {title}, {}\n\n{}\n", setting.name(), table(&heading, &rows));
            }
        };
        let throughput = self.columns(WorkloadKind::Throughput, "ns_per_op");
        let deferred: Vec<Column> = match self.workloads(WorkloadKind::Deferred).first() {
            Some(workload) => {
                DEFERRED.iter().map(|&(title, quantity)| Column { title, workload, quantity }).collect()
            }
            None => Vec::new(),
        };
        for setting in [Setting::Alone, Setting::AllCores] {
            add("Time per operation (ns)", setting, &throughput);
        }
        for setting in [Setting::Alone, Setting::AllCores] {
            add("Deferred (ns and bytes per operation)", setting, &deferred);
        }
        add("METG, 50 % (µs)", Setting::AllCores, &self.columns(WorkloadKind::Granularity, "metg_us"));
        text
    }

    fn columns(&self, kind: WorkloadKind, quantity: &'static str) -> Vec<Column> {
        self.workloads(kind)
            .into_iter()
            .map(|workload| Column {
                title: workload.strip_prefix("metg-").unwrap_or(workload),
                workload,
                quantity,
            })
            .collect()
    }

    /// A row for each engine that has any of the values.
    fn rows(&self, setting: Setting, columns: &[Column]) -> Vec<Vec<String>> {
        let mut rows = Vec::new();
        for engine in self.engines() {
            let summaries: Vec<Option<Summary>> =
                columns.iter().map(|at| self.summary(engine, at.workload, setting, at.quantity)).collect();
            if summaries.iter().all(Option::is_none) {
                continue;
            }
            let mut row = vec![self.with_workers(engine, setting, columns)];
            for (summary, at) in summaries.iter().zip(columns) {
                let ours = self.summary(OURS, at.workload, setting, at.quantity);
                row.push(cell(*summary, ours.filter(|_| engine != OURS)));
            }
            rows.push(row);
        }
        rows
    }

    /// The engine's name, and how many threads ran its operations beside the submitting one.
    fn with_workers(&self, engine: &str, setting: Setting, columns: &[Column]) -> String {
        let of_row = self.entries.iter().filter(|entry| {
            entry.engine == engine
                && entry.setting == setting
                && columns.iter().any(|at| at.workload == entry.workload.name)
        });
        match of_row.flat_map(|entry| &entry.series.rounds).next().map(|round| round.workers) {
            Some(1.0) => format!("{engine}, 1 worker"),
            Some(0.0) | None => format!("{engine}, no worker"),
            Some(workers) => format!("{engine}, {workers} workers"),
        }
    }

    /// Number of operations of each engine.
    pub fn sizes(&self) -> String {
        let workloads = distinct(self.entries.iter().map(|entry| entry.workload.name));
        let heading = [&["n"], workloads.as_slice()].concat();
        let n = |engine: &str, workload: &str| {
            let mut of_both =
                self.entries.iter().filter(|entry| entry.engine == engine && entry.workload.name == workload);
            of_both
                .find_map(|entry| entry.series.rounds.first())
                .map_or(NONE.to_owned(), |round| figure(round.n))
        };
        let rows: Vec<Vec<String>> = self
            .engines()
            .into_iter()
            .map(|engine| {
                let cells = workloads.iter().map(|workload| n(engine, workload));
                [engine.to_owned()].into_iter().chain(cells).collect()
            })
            .collect();
        table(&heading, &rows)
    }

    /// Measurements that were given up, with the reasons.
    pub fn troubles(&self) -> Vec<String> {
        let line = |Entry { engine, workload, setting, series }: &Entry| {
            let (name, setting, why) = (workload.name, setting.name(), series.trouble.as_ref()?);
            Some(match series.rounds.len() {
                0 => format!("{engine}, {setting}, {name}: {why}"),
                rounds => format!("{engine}, {setting}, {name}: {why} (after {rounds} good rounds)"),
            })
        };
        self.entries.iter().filter_map(line).collect()
    }

    /// A table for the README: for each engine the better of its settings, the median alone.
    pub fn short(&self) -> String {
        let engines = self.engines();
        let heading = [&[""], engines.as_slice()].concat();
        let mut rows = Vec::new();
        for &(title, workload, quantity) in SHORT {
            let better = |engine: &str| {
                [Setting::Alone, Setting::AllCores]
                    .into_iter()
                    .filter_map(|setting| self.summary(engine, workload, setting, quantity))
                    .filter_map(Summary::median)
                    .min_by(f64::total_cmp)
            };
            let medians: Vec<Option<f64>> = engines.iter().map(|engine| better(engine)).collect();
            if medians.iter().all(Option::is_none) {
                continue;
            }
            let mut row = vec![title.to_owned()];
            row.extend(medians.iter().map(|median| median.map_or(NONE.to_owned(), figure)));
            rows.push(row);
        }
        table(&heading, &rows)
    }
}

/// A cell without a figure.
const NONE: &str = "–";

struct Column {
    title: &'static str,
    workload: &'static str,
    quantity: &'static str,
}

/// Columns of the deferred workload.
const DEFERRED: &[(&str, &str)] = &[
    ("push", "push_ns"),
    ("run", "run_ns"),
    ("push + run", "ns_per_op"),
    ("bytes pending", "bytes_per_op"),
    ("push, warm", "warm_push_ns"),
    ("run, warm", "warm_run_ns"),
];

/// Rows of the short table.
const SHORT: &[(&str, &str, &str)] = &[
    ("chain, ns", "chain", "ns_per_op"),
    ("independent, ns", "independent", "ns_per_op"),
    ("fan 1 + 16, ns", "fan", "ns_per_op"),
    ("random 2r + 1w, ns", "random", "ns_per_op"),
    ("stencil, width 32, ns", "stencil-32", "ns_per_op"),
    ("deferred, push, ns", "deferred", "push_ns"),
    ("deferred, bytes pending", "deferred", "bytes_per_op"),
    ("METG of the stencil, µs", "metg-stencil", "metg_us"),
];

/// Median, range, and how many times ours that is.
fn cell(summary: Option<Summary>, ours: Option<Summary>) -> String {
    let Spread { median, min, max } = match summary {
        None => return NONE.to_owned(),
        Some(Summary::NotFound(without, rounds)) => return format!("not reached ({without} of {rounds})"),
        Some(Summary::Spread(spread)) => spread,
    };
    let mut text = figure(median);
    if min < max {
        text += &format!(" [{}–{}]", figure(min), figure(max));
    }
    if let Some(ours) = ours.and_then(Summary::median).filter(|ours| *ours > 0.0) {
        text += &format!(" ×{}", figure(median / ours));
    }
    text
}

fn distinct(names: impl Iterator<Item = &'static str>) -> Vec<&'static str> {
    let mut found = Vec::new();
    for name in names {
        if !found.contains(&name) {
            found.push(name);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::measurement::Measurement;
    use super::super::workloads::WORKLOADS;
    use super::*;

    fn workload(name: &str) -> &'static Workload {
        WORKLOADS.iter().find(|workload| workload.name == name).expect("the table has it")
    }

    /// Adds a round with one quantity, given as it stands in JSON.
    fn add(results: &mut Results, engine: &'static str, name: &str, setting: Setting, quantity: &str) {
        let workers = setting.threads(2) - 1;
        let line =
            format!(r#"{{"workload":"{name}","engine":"{engine}","workers":{workers},"n":10,{quantity}}}"#);
        let measurement = Measurement::find(&line, name).expect("the line is well formed");
        results.entry(engine, workload(name), setting).series.rounds.push(measurement);
    }

    #[test]
    fn a_peer_is_compared_to_ours_in_the_same_setting() {
        let mut results = Results::default();
        for (ours, theirs) in [(20, 90), (30, 110), (25, 100)] {
            add(&mut results, OURS, "chain", Setting::Alone, &format!("\"ns_per_op\":{ours}"));
            add(&mut results, "gomp", "chain", Setting::Alone, &format!("\"ns_per_op\":{theirs}"));
        }
        add(&mut results, "gomp", "chain", Setting::AllCores, "\"ns_per_op\":1234.6");
        let tables = results.tables();
        let expected = "\
### Time per operation (ns), alone

| engine               | chain                |
| -------------------- | -------------------- |
| estafette, no worker | 25.0 [20.0–30.0]     |
| gomp, no worker      | 100 [90.0–110] ×4.00 |

### Time per operation (ns), all cores

| engine         | chain |
| -------------- | ----- |
| gomp, 1 worker | 1,235 |

";
        assert_eq!(tables, expected);
    }

    #[test]
    fn deferred_and_metg_have_tables_of_their_own() {
        let mut results = Results::default();
        add(&mut results, "mxnet", "deferred", Setting::Alone, "\"push_ns\":650,\"bytes_per_op\":466");
        add(&mut results, "mxnet", "metg-fft", Setting::AllCores, "\"metg_us\":2.8");
        add(&mut results, "gomp", "metg-fft", Setting::AllCores, "\"metg_us\":null");
        let tables = results.tables();
        assert!(
            tables.contains("| mxnet, no worker | 650  | –   | –          | 466           |"),
            "{tables}"
        );
        assert!(tables.contains("| mxnet, 1 worker | 2.80                 |"), "{tables}");
        assert!(tables.contains("| gomp, 1 worker  | not reached (1 of 1) |"), "{tables}");
        assert!(!tables.contains("Time per operation"), "{tables}");
    }

    #[test]
    fn the_short_table_has_the_better_setting() {
        let mut results = Results::default();
        add(&mut results, OURS, "random", Setting::Alone, "\"ns_per_op\":70");
        add(&mut results, OURS, "random", Setting::AllCores, "\"ns_per_op\":60");
        let expected = "\
|                    | estafette |
| ------------------ | --------- |
| random 2r + 1w, ns | 60.0      |
";
        assert_eq!(results.short(), expected);
    }

    #[test]
    fn what_was_given_up_is_reported_with_its_reason() {
        let mut results = Results::default();
        for name in ["fan", "random"] {
            results.entry("gomp", workload(name), Setting::Alone).series.trouble = Some("over 120 s".into());
        }
        add(&mut results, "gomp", "chain", Setting::Alone, "\"ns_per_op\":null");
        results.entry("gomp", workload("chain"), Setting::Alone).series.trouble = Some("it crashed".into());
        assert_eq!(
            results.troubles(),
            [
                "gomp, alone, fan: over 120 s",
                "gomp, alone, random: over 120 s",
                "gomp, alone, chain: it crashed (after 1 good rounds)"
            ]
        );
        assert!(results.sizes().contains("| gomp | –   | –      | 10.0  |"), "{}", results.sizes());
        assert!(results.tables().contains("not reached (1 of 1)"), "{}", results.tables());
    }
}
