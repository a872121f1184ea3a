// Package engine is the simulated inference engine: it turns requests into
// streams of text, paced as a GPU would be.
//
// It guarantees that an answer's text does not depend on what else runs (it is
// that of package text whatever the batch, the cache or a preemption did), that
// a request that is closed gives its slot and its blocks back at once, that an
// idle engine uses no CPU, and that an engine without rates adds no delay.
//
// One goroutine, Run, plans a step (package batch), lets the step's time pass
// and hands the new tokens out. Everything else runs on the callers'
// goroutines. Times come from package time alone, so testing/synctest applies.
package engine
