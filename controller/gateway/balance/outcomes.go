package balance

// Outcomes count how the requests at a replica's engines have ended, from the moment when
// the table first had the replica. A request that is sent to several engines counts at each.
type Outcomes struct {
	// Answered requests got an answer of the engine, which may be an error of the client's.
	Answered int64
	// Failed requests were failed by the engine: any Fault but Dial. A connection that is
	// refused has taken no request, and a client that leaves is not the engine's failure.
	Failed int64
	// FailedInARow are those of Failed since the last of Answered.
	FailedInARow int64
}

// failed counts a fault of the engine at f, once.
func (o *Outcomes) failed(f *flight, fault Fault) {
	if fault == Dial || f.faulted {
		return
	}
	f.faulted = true
	o.Failed++
	o.FailedInARow++
}

// ended counts the end of f.
func (o *Outcomes) ended(f *flight) {
	if f.answered && !f.faulted {
		o.Answered++
		o.FailedInARow = 0
	}
}
