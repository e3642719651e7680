//! Compares the table with a slow and obvious model in virtual time.

use proptest::prelude::*;

use super::*;

const PAUSE: Duration = Duration::from_secs(2);

#[derive(Debug, Clone)]
enum Step {
    Set(Origin, Vec<u16>),
    Claim(u16),
    Choose(Policy, Vec<u16>, u64),
    Leave(usize),
    Fail(usize),
    Succeed(usize),
    Answer(usize),
    Probe(u16, bool),
    Wait(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let some = || prop::sample::subsequence((0..6u16).collect::<Vec<_>>(), 0..=6);
    let policy = prop_oneof![Just(Policy::RoundRobin), Just(Policy::LeastLoaded), Just(Policy::Prefix)];
    let origin = prop_oneof![Just(Origin::Settings), Just(Origin::Discovery)];
    let step = prop_oneof![
        1 => (origin, some()).prop_map(|(origin, named)| Step::Set(origin, named)),
        2 => (0..6u16).prop_map(Step::Claim),
        8 => (policy, prop::sample::subsequence((0..6u16).collect::<Vec<_>>(), 0..=2), 0..9u64)
            .prop_map(|(policy, avoid, tokens)| Step::Choose(policy, avoid, tokens)),
        3 => any::<usize>().prop_map(Step::Leave),
        5 => any::<usize>().prop_map(Step::Fail),
        2 => any::<usize>().prop_map(Step::Succeed),
        2 => any::<usize>().prop_map(Step::Answer),
        1 => (0..6u16, any::<bool>()).prop_map(|(number, healthy)| Step::Probe(number, healthy)),
        2 => (0..3_000u64).prop_map(Step::Wait),
    ];
    prop::collection::vec(step, 1..150)
}

#[derive(Debug, Clone, Default)]
struct Model {
    /// The servers in order of arrival.
    servers: Vec<Server>,
    came: u64,
    last: u64,
}

#[derive(Debug, Clone, Default)]
struct Server {
    name: u16,
    number: u64,
    settings: bool,
    discovery: bool,
    requested: bool,
    held: Vec<u64>,
    requests: u64,
    failures: u64,
    in_a_row: u64,
    alone_until: Option<Instant>,
    down: bool,
}

impl Server {
    fn named(&self) -> bool {
        self.settings || self.discovery
    }

    fn well(&self, now: Instant) -> bool {
        !self.down && self.alone_until.is_none_or(|until| until <= now)
    }

    fn take(&mut self, tokens: u64, now: Instant) {
        if self.well(now) && self.alone_until.is_some() {
            self.alone_until = Some(now + PAUSE);
        }
        self.requests += 1;
        self.held.push(tokens);
    }

    fn tokens(&self) -> u64 {
        self.held.iter().sum()
    }

    fn state(&self) -> ServerState {
        match self {
            _ if !self.named() && !self.requested => ServerState::Draining,
            _ if self.down => ServerState::Down,
            _ if self.alone_until.is_some() => ServerState::Open,
            _ => ServerState::Up,
        }
    }
}

impl Model {
    fn server(&mut self, name: u16) -> &mut Server {
        if !self.servers.iter().any(|server| server.name == name) {
            self.came += 1;
            let number = self.came;
            self.servers.push(Server { name, number, ..Server::default() });
        }
        let found = self.servers.iter_mut().find(|server| server.name == name);
        found.expect("it is there")
    }

    fn set(&mut self, origin: Origin, named: &[u16]) {
        for name in named {
            self.server(*name);
        }
        for server in &mut self.servers {
            let is = named.contains(&server.name);
            match origin {
                Origin::Settings => server.settings = is,
                Origin::Discovery => server.discovery = is,
            }
        }
        self.forget();
    }

    fn forget(&mut self) {
        self.servers.retain(|server| server.named() || server.requested || !server.held.is_empty());
    }

    fn fit(&self, avoid: &[u16], now: Instant) -> Vec<&Server> {
        let named = || {
            let servers = self.servers.iter();
            servers.filter(|server| server.named() && !avoid.contains(&server.name))
        };
        let well: Vec<_> = named().filter(|server| server.well(now)).collect();
        let not_down: Vec<_> = named().filter(|server| !server.down).collect();
        match (well.is_empty(), not_down.is_empty()) {
            (false, _) => well,
            (true, false) => not_down,
            (true, true) => named().collect(),
        }
    }

    fn in_turn<'a>(&self, fit: &[&'a Server]) -> Option<&'a Server> {
        let later = fit.iter().find(|server| server.number > self.last);
        later.or(fit.first()).copied()
    }

    fn snapshot(&self) -> Vec<(ServerUrl, ServerState, u64, u64, u64)> {
        let servers = self.servers.iter().map(|server| {
            let in_flight = server.held.len() as u64;
            let counts = (in_flight, server.requests, server.failures);
            (url(server.name), server.state(), counts.0, counts.1, counts.2)
        });
        servers.collect()
    }
}

struct Held {
    claim: Claim,
    name: u16,
    tokens: u64,
    judged: bool,
}

fn name(of: &ServerUrl) -> u16 {
    (0..6).find(|name| url(*name) == *of).expect("one of six")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn the_table_is_as_the_obvious_one(steps in steps()) {
        let servers = Arc::new(Servers::new(false));
        let mut now = Instant::now();
        let (mut model, mut held) = (Model::default(), Vec::<Held>::new());
        for step in steps {
            match step {
                Step::Set(origin, named) => {
                    servers.set(origin, Role::Decode, &urls(named.iter().copied()));
                    model.set(origin, &named);
                }
                Step::Claim(name) => {
                    let claim = servers.claim(Role::Decode, &url(name), 1, now);
                    let known = model.servers.iter().any(|server| server.name == name);
                    let server = model.server(name);
                    server.requested |= !known;
                    prop_assert_eq!(claim.is_some(), server.well(now));
                    if let Some(claim) = claim {
                        server.take(1, now);
                        held.push(Held { claim, name, tokens: 1, judged: false });
                    }
                }
                Step::Choose(policy, avoid, tokens) => {
                    let avoided = urls(avoid.iter().copied());
                    let wanted = Wanted { tokens, prefix: Some(tokens), avoid: &avoided, prefill: None };
                    let claim = servers.choose(Role::Decode, &wanted, policy, now);
                    let fit = model.fit(&avoid, now);
                    let Some(claim) = claim else {
                        prop_assert!(fit.is_empty());
                        continue;
                    };
                    let name = name(claim.url());
                    let chosen = fit.iter().find(|server| server.name == name);
                    prop_assert!(chosen.is_some(), "{} of {:?}", name, fit);
                    let chosen = chosen.expect("it was checked");
                    match policy {
                        Policy::RoundRobin => {
                            prop_assert_eq!(Some(name), model.in_turn(&fit).map(|server| server.name));
                        }
                        Policy::LeastLoaded => {
                            prop_assert_eq!(Some(chosen.tokens()), fit.iter().map(|server| server.tokens()).min());
                        }
                        Policy::Prefix => {
                            let all: usize = fit.iter().map(|server| server.held.len()).sum();
                            let most = ((all + 1) as f64 * 1.25 / fit.len() as f64).ceil();
                            prop_assert!((chosen.held.len() as f64) < most);
                        }
                    }
                    model.last = chosen.number;
                    model.server(name).take(tokens, now);
                    held.push(Held { claim, name, tokens, judged: false });
                }
                Step::Leave(_) | Step::Fail(_) | Step::Succeed(_) | Step::Answer(_) if held.is_empty() => {}
                Step::Leave(at) => {
                    let gone = held.swap_remove(at % held.len());
                    drop(gone.claim);
                    let of_server = &mut model.server(gone.name).held;
                    let at = of_server.iter().position(|tokens| *tokens == gone.tokens);
                    of_server.swap_remove(at.expect("it was held"));
                    model.forget();
                }
                Step::Fail(at) => {
                    let at = at % held.len();
                    held[at].claim.failed(FailureKind::Broken, now);
                    if !std::mem::replace(&mut held[at].judged, true) {
                        let server = model.server(held[at].name);
                        server.failures += 1;
                        server.in_a_row += 1;
                        if server.in_a_row >= 3 {
                            server.alone_until = Some(now + PAUSE);
                        }
                    }
                }
                Step::Succeed(at) => {
                    let at = at % held.len();
                    held[at].claim.succeeded(now);
                    if !std::mem::replace(&mut held[at].judged, true) {
                        let server = model.server(held[at].name);
                        (server.in_a_row, server.alone_until) = (0, None);
                    }
                }
                Step::Answer(at) => {
                    let at = at % held.len();
                    held[at].claim.answered();
                    if !held[at].judged {
                        model.server(held[at].name).alone_until = None;
                    }
                }
                Step::Probe(name, healthy) => {
                    let known = model.servers.iter_mut().find(|server| server.name == name);
                    let news = known.is_some_and(|server| {
                        let news = std::mem::replace(&mut server.down, !healthy) == healthy;
                        server.failures += u64::from(news && !healthy);
                        news
                    });
                    prop_assert_eq!(servers.probed(Role::Decode, &url(name), healthy), news);
                }
                Step::Wait(milliseconds) => now += Duration::from_millis(milliseconds),
            }
            let snapshot: Vec<_> = servers
                .snapshot()
                .into_iter()
                .map(|server| (server.url, server.state, server.in_flight, server.requests, server.failures))
                .collect();
            prop_assert_eq!(snapshot, model.snapshot());
        }
    }

    /// A server that is down moves only its own prefixes; when it is well again it gets them back.
    #[test]
    fn a_server_moves_only_what_it_had(count in 2..9u16, gone in 0..9u16, prefixes in prop::collection::vec(any::<u64>(), 50)) {
        let (servers, now, gone) = (proxy(count), Instant::now(), gone % count);
        let places = || -> Vec<ServerUrl> {
            let place = |prefix: &u64| choose(&servers, Policy::Prefix, *prefix, now).expect("a server").url().clone();
            prefixes.iter().map(place).collect()
        };
        let before = places();
        servers.probed(Role::Decode, &url(gone), false);
        for (before, meanwhile) in before.iter().zip(places()) {
            prop_assert_ne!(&meanwhile, &url(gone));
            prop_assert!(*before == url(gone) || *before == meanwhile);
        }
        servers.probed(Role::Decode, &url(gone), true);
        prop_assert_eq!(places(), before);
    }
}
