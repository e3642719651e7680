mod basic;
mod bits;
mod crash;
mod faults;
mod protected;
mod script;
mod seams;
