mod basic;
mod bits;
mod collecting;
mod crash;
mod faults;
mod protected;
mod script;
mod seams;
