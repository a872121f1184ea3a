package usage

import "context"

// Commit is one step of Run.
func (r *Recorder) Commit(ctx context.Context) int { return r.commit(ctx) }
