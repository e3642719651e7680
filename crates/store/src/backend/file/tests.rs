mod basic;
mod bits;
mod collecting;
mod crash;
mod faults;
mod full;
#[cfg(feature = "llama")]
mod llama;
#[cfg(feature = "objects")]
mod objects;
mod protected;
mod script;
mod seams;
mod tiers;
