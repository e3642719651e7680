//! A plan of a request: what it asks for, what will go wrong, and what its client may see then.

use transload_tests::process::Chance;

use super::fakes::Role;

/// The way in which the command is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Setting {
    pub(crate) mode: Mode,
    pub(crate) connector: Connector,
    /// The number of tokens of a leg, if decodes are chunked.
    pub(crate) chunk: Option<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Sidecar,
    Proxy,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Connector {
    NixlV2,
    SharedStorage,
    Sglang,
}

impl Connector {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::NixlV2 => "nixlv2",
            Self::SharedStorage => "shared-storage",
            Self::Sglang => "sglang",
        }
    }
}

impl Setting {
    const fn of(mode: Mode, connector: Connector) -> Self {
        Self { mode, connector, chunk: None }
    }

    pub(crate) const ALL: [Self; 7] = [
        Self::of(Mode::Sidecar, Connector::NixlV2),
        Self::of(Mode::Sidecar, Connector::SharedStorage),
        Self::of(Mode::Sidecar, Connector::Sglang),
        Self::of(Mode::Proxy, Connector::NixlV2),
        Self::of(Mode::Proxy, Connector::SharedStorage),
        Self::of(Mode::Proxy, Connector::Sglang),
        Self { mode: Mode::Sidecar, connector: Connector::NixlV2, chunk: Some(3) },
    ];
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It answers normally.
    Fine,
    /// It answers in small pieces.
    Slow,
    /// It answers after `103 Early Hints`.
    Hints,
    /// Its answer is longer than the proxy reads whole.
    Gigantic,
    /// It sends unrequested bytes after its answer.
    Extra,
    /// It resets the connection at once.
    Reset,
    /// It closes the connection at once.
    Close,
    ResetInHead,
    CloseInHead,
    ResetAfterHead,
    ResetInBody,
    CloseInBody,
    /// It never answers.
    Silence,
    /// It stops in the middle of its answer.
    SilenceInBody,
    Redirect,
    Client4xx,
    Server5xx,
    /// It sends something that is not HTTP.
    Garbage,
    /// Its body is not JSON.
    NotJson,
    GiganticHead,
    /// Its framing contradicts itself, or is invalid.
    WrongLength,
}

impl Fault {
    const ALL: [(char, Self); 21] = [
        ('o', Self::Fine),
        ('w', Self::Slow),
        ('i', Self::Hints),
        ('G', Self::Gigantic),
        ('x', Self::Extra),
        ('R', Self::Reset),
        ('C', Self::Close),
        ('h', Self::ResetInHead),
        ('H', Self::CloseInHead),
        ('e', Self::ResetAfterHead),
        ('b', Self::ResetInBody),
        ('t', Self::CloseInBody),
        ('s', Self::Silence),
        ('S', Self::SilenceInBody),
        ('3', Self::Redirect),
        ('4', Self::Client4xx),
        ('5', Self::Server5xx),
        ('g', Self::Garbage),
        ('n', Self::NotJson),
        ('B', Self::GiganticHead),
        ('l', Self::WrongLength),
    ];

    fn letter(self) -> char {
        let found = Self::ALL.iter().find(|(_, fault)| *fault == self);
        found.expect("each has a letter").0
    }

    fn of(letter: char) -> Option<Self> {
        Some(Self::ALL.iter().find(|(other, _)| *other == letter)?.1)
    }

    /// Draws a fault, in most cases none.
    fn draw(chance: &mut Chance) -> Self {
        match chance.below(4) {
            0 => Self::ALL[chance.below(Self::ALL.len() as u64) as usize].1,
            _ => Self::Fine,
        }
    }

    /// Its request never ends.
    pub(crate) fn hangs(self) -> bool {
        matches!(self, Self::Silence | Self::SilenceInBody)
    }

    fn answers(self) -> bool {
        matches!(self, Self::Fine | Self::Slow | Self::Hints | Self::Gigantic | Self::Extra)
    }

    /// Returns the status of an answer that is passed as it is.
    pub(crate) fn status(self) -> Option<u16> {
        match self {
            Self::Redirect => Some(307),
            Self::Client4xx => Some(422),
            Self::Server5xx => Some(500),
            Self::NotJson => Some(200),
            _ => None,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Route {
    Completions,
    Chat,
    Responses,
    /// A `POST` that is passed through.
    Embeddings,
    /// A `GET` that is passed through.
    Models,
}

impl Route {
    pub(crate) const ALL: [Self; 5] = [Self::Completions, Self::Chat, Self::Responses, Self::Embeddings, Self::Models];

    pub(crate) const fn path(self) -> &'static str {
        match self {
            Self::Completions => "/v1/completions",
            Self::Chat => "/v1/chat/completions",
            Self::Responses => "/v1/responses",
            Self::Embeddings => "/v1/embeddings",
            Self::Models => "/v1/models",
        }
    }

    pub(crate) const fn is_disaggregated(self) -> bool {
        !matches!(self, Self::Embeddings | Self::Models)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Named {
    Nothing,
    /// It names a server that refuses connections.
    Closed,
    One(usize),
}

#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// A number that is different for each request of a world.
    pub(crate) number: u64,
    pub(crate) route: Route,
    pub(crate) stream: bool,
    pub(crate) named: Named,
    /// The faults of the first leg to a prefill server, the second one, and so on. Later legs have none.
    pub(crate) prefill: Vec<Fault>,
    pub(crate) decode: Vec<Fault>,
    pub(crate) tokens: usize,
    /// The body has `cache_hit_threshold`, and the decode server lacks the prompt.
    pub(crate) misses: bool,
    /// The client sends parameters of its own, which no server may see.
    pub(crate) steers: bool,
}

impl Plan {
    /// `may_hang`: the client will not wait for its end.
    pub(crate) fn draw(number: u64, may_hang: bool, chance: &mut Chance) -> Self {
        let routes = [0, 0, 0, 1, 1, 1, 2, 3, 4];
        let route = Route::ALL[routes[chance.below(routes.len() as u64) as usize]];
        let named = match chance.below(8) {
            0 => Named::Nothing,
            1 => Named::Closed,
            other => Named::One(other as usize % 2),
        };
        let mut faults = |hang: bool| {
            let mut faults: Vec<_> = (0..=chance.below(2)).map(|_| Fault::draw(chance)).collect();
            faults.retain(|fault| hang || !fault.hangs());
            faults
        };
        let (prefill, decode) = (faults(true), faults(may_hang));
        Self {
            number,
            route,
            stream: route != Route::Models && chance.below(2) == 0,
            named,
            prefill,
            decode,
            tokens: 1 + chance.below(12) as usize,
            misses: chance.below(3) == 0,
            steers: chance.below(4) == 0,
        }
    }

    /// Returns the facts that servers need about it, as a word in the request.
    pub(crate) fn word(&self) -> String {
        let letters = |faults: &[Fault]| faults.iter().map(|fault| fault.letter()).collect::<String>();
        format!(
            "storm/{}/{}/{}/{}/{}/end",
            self.number,
            letters(&self.prefill),
            letters(&self.decode),
            self.tokens,
            u8::from(self.misses),
        )
    }

    /// Finds that word in a request.
    pub(crate) fn find(request: &str) -> Option<Asked> {
        let (_, rest) = request.split_once("storm/")?;
        let mut parts = rest.split('/');
        let number = parts.next()?.parse().ok()?;
        let mut faults = || parts.next()?.chars().map(Fault::of).collect::<Option<Vec<_>>>();
        let (prefill, decode) = (faults()?, faults()?);
        let tokens = parts.next()?.parse().ok()?;
        let misses = parts.next()? == "1";
        Some(Asked { number, prefill, decode, tokens, misses })
    }

    /// Returns the outcomes that its client may see.
    pub(crate) fn outcomes(&self, setting: Setting) -> Outcomes {
        let mut may = Outcomes::default();
        let chunked = setting.chunk.is_some() && self.route == Route::Chat;
        for fault in &self.decode {
            match fault.status() {
                // Of chunks only whole chat completions are of use, which are not too long.
                _ if chunked && (*fault == Fault::Gigantic || !fault.answers()) => may.fails(),
                Some(status) => may.own.push((Role::Decode, status)),
                None if fault.answers() => {}
                None => may.fails(),
            }
            if chunked {
                may.own.extend(fault.status().map(|status| (Role::Decode, status)));
            }
        }
        // What has failed may be asked for again, also by a decode server's own word where it had a ticket.
        let with_ticket = self.route.is_disaggregated() && setting.connector == Connector::NixlV2;
        may.answer = may.error
            || with_ticket && self.decode.first() == Some(&Fault::Server5xx)
            || setting.connector == Connector::Sglang
            || self.decode.first().is_none_or(|fault| fault.answers());
        if self.route.is_disaggregated() && self.prefill.contains(&Fault::Client4xx) {
            may.own.extend(Fault::Client4xx.status().map(|status| (Role::Prefill, status)));
        }
        may
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) number: u64,
    pub(crate) prefill: Vec<Fault>,
    pub(crate) decode: Vec<Fault>,
    pub(crate) tokens: usize,
    pub(crate) misses: bool,
}

/// The outcomes that a client may see.
#[derive(Debug, Default)]
pub(crate) struct Outcomes {
    /// The answer, with its tokens.
    pub(crate) answer: bool,
    /// An error of the command itself.
    pub(crate) error: bool,
    /// A broken answer.
    pub(crate) broken: bool,
    /// A server of this role may answer with this status of its own.
    pub(crate) own: Vec<(Role, u16)>,
}

impl Outcomes {
    fn fails(&mut self) {
        self.error = true;
        self.broken = true;
    }
}

/// Returns the text of the answer's tokens from one on.
pub(crate) fn tokens(number: u64, from: usize, to: usize) -> String {
    (from..to).map(|token| format!("t{number}.{token} ")).collect()
}
