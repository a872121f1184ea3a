package nomad

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"

	"remuda/internal/replica"
)

// ConflictError says what is there in place of what was expected. It wraps
// ErrConflict.
type ConflictError struct {
	Job string
	// Want and Have are JobModifyIndex; 0 is no job.
	Want, Have uint64
	// Reason is a sentence's end.
	Reason string
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("job %s: %s (known at index %d, found at %d)", e.Job, e.Reason, e.Want, e.Have)
}

// Unwrap makes errors.Is find ErrConflict.
func (e *ConflictError) Unwrap() error { return ErrConflict }

// Validate has Nomad check a rendered job. The error has every fault that Nomad
// found and wraps ErrRefused.
func (c *Client) Validate(ctx context.Context, job *api.Job) (warnings string, err error) {
	what := "validate job " + text(job.ID, "")
	var answer *api.JobValidateResponse
	err = c.call(ctx, what, func(ctx context.Context) error {
		var err error
		answer, _, err = c.api.Jobs().Validate(job, c.write(ctx))
		return err
	})
	if err != nil {
		return "", err
	}
	faults := answer.ValidationErrors
	if len(faults) == 0 && answer.Error != "" {
		faults = []string{answer.Error}
	}
	if len(faults) > 0 {
		slices.Sort(faults)
		return answer.Warnings, fmt.Errorf("%s: %w", what, JobFaults(faults))
	}
	return answer.Warnings, nil
}

// PlanResult is what Nomad would do with a job.
type PlanResult struct {
	// Index is the job's JobModifyIndex, 0 where there is none.
	Index uint64
	// Changed: it differs from what is registered.
	Changed bool
	Diff    *api.JobDiff
	// Failures say why Nomad could not place it now.
	Failures []string
	Warnings string
}

// Plan asks Nomad what it would do with a job, and changes nothing.
func (c *Client) Plan(ctx context.Context, job *api.Job) (PlanResult, error) {
	var out PlanResult
	err := c.call(ctx, "plan job "+text(job.ID, ""), func(ctx context.Context) error {
		answer, _, err := c.api.Jobs().Plan(job, true, c.write(ctx))
		if err != nil {
			return err
		}
		out = PlanResult{Index: answer.JobModifyIndex, Diff: answer.Diff, Changed: answer.Diff == nil || answer.Diff.Type != "None",
			Failures: failures(answer.FailedTGAllocs), Warnings: answer.Warnings}
		return nil
	})
	return out, err
}

// Registration is a job that is there as it was wanted.
type Registration struct {
	// Index is its JobModifyIndex, for the next Register.
	Index uint64
	// Already: it was there before, as after an answer that was lost.
	Already  bool
	Warnings string
}

// Register writes a replica's job over the version with this JobModifyIndex, or
// where index is 0 over none. If there is another version the error wraps
// ErrConflict, and nothing was written; unless that version is the very same job,
// running: then it is done already.
func (c *Client) Register(ctx context.Context, job *api.Job, index uint64) (Registration, error) {
	id := text(job.ID, "")
	what := "register job " + id
	if _, err := replica.ParseName(job.Meta[MetaReplica]); err != nil || job.Meta[MetaReplica] != id {
		return Registration{}, fmt.Errorf("%s: %w: not a job of a replica", what, ErrRefused)
	}
	var out Registration
	err := c.call(ctx, what, func(ctx context.Context) error {
		answer, _, err := c.api.Jobs().RegisterOpts(job, &api.RegisterOptions{EnforceIndex: true, ModifyIndex: index}, c.write(ctx))
		switch {
		case err != nil:
			return err
		case answer.EvalCreateIndex == answer.JobModifyIndex:
			out = Registration{Index: answer.JobModifyIndex, Warnings: answer.Warnings}
		default:
			// Nothing changed: Nomad made an evaluation only, and answers with the
			// job's ModifyIndex in the place of its JobModifyIndex
			// (Job.Register in nomad/job_endpoint.go).
			out = Registration{Index: index, Already: true, Warnings: answer.Warnings}
		}
		return nil
	})
	if !errors.Is(err, ErrConflict) {
		return out, err
	}
	found, foundErr := c.info(ctx, id)
	switch {
	case errors.Is(foundErr, ErrNotFound):
		return out, fmt.Errorf("%s: %w", what, &ConflictError{id, index, 0, "it no longer exists"})
	case foundErr != nil:
		return out, foundErr
	}
	have := number(found.JobModifyIndex)
	conflict := func(reason string) error { return fmt.Errorf("%s: %w", what, &ConflictError{id, index, have, reason}) }
	switch {
	case found.Meta[MetaReplica] != id:
		return out, conflict("another job has this ID and is not a job of a replica")
	case found.Stop != nil && *found.Stop:
		return out, conflict("it was stopped outside remuda")
	}
	// It may be the write of another leader, which chose another generation.
	setGeneration(job, found.Meta[MetaGeneration])
	plan, err := c.Plan(ctx, job)
	switch {
	case err != nil:
		return out, err
	case plan.Changed || plan.Index != have:
		return out, conflict("it was changed outside remuda")
	}
	return Registration{Index: have, Already: true}, nil
}

// Stop stops a replica's job; with purge it is also forgotten, as is right once its
// allocations have ended. A job that is stopped, or not there, is stopped already.
// Index is the JobModifyIndex that this was decided on: a job with another one, or one
// that is not a replica's, is left alone, and the error wraps ErrConflict. Nomad has no
// compare and swap for it, so that what is registered between the comparison and the
// order is stopped all the same. Stop returns Nomad's index of the write, 0 where nothing had
// to be written.
func (c *Client) Stop(ctx context.Context, name replica.Name, index uint64, purge bool) (uint64, error) {
	id := JobID(name)
	found, err := c.info(ctx, id)
	switch {
	case errors.Is(err, ErrNotFound):
		return 0, nil
	case err != nil:
		return 0, err
	case found.Meta[MetaReplica] != id:
		return 0, fmt.Errorf("stop job %s: %w", id, &ConflictError{id, 0, number(found.JobModifyIndex), "it is not a job of a replica"})
	case found.Stop != nil && *found.Stop && !purge:
		return 0, nil
	case number(found.JobModifyIndex) != index:
		return 0, fmt.Errorf("stop job %s: %w", id, &ConflictError{id, index, number(found.JobModifyIndex), "it has changed since"})
	}
	var written uint64
	err = c.call(ctx, "stop job "+id, func(ctx context.Context) error {
		_, meta, err := c.api.Jobs().DeregisterOpts(id, &api.DeregisterOptions{Purge: purge}, c.write(ctx))
		if err == nil {
			written = meta.LastIndex
		}
		return err
	})
	if errors.Is(err, ErrNotFound) {
		return 0, nil // somebody was faster
	}
	return written, err
}

func (c *Client) info(ctx context.Context, id string) (*api.Job, error) {
	var job *api.Job
	err := c.call(ctx, "read job "+id, func(ctx context.Context) error {
		var err error
		job, _, err = c.api.Jobs().Info(id, c.read(ctx))
		return err
	})
	return job, err
}

// Why says why Nomad has not placed a replica's job, empty where it has or does not
// know yet.
func (c *Client) Why(ctx context.Context, name replica.Name) (string, error) {
	id := JobID(name)
	var evals []*api.Evaluation
	err := c.call(ctx, "read the evaluations of job "+id, func(ctx context.Context) error {
		var err error
		evals, _, err = c.api.Jobs().Evaluations(id, c.read(ctx))
		return err
	})
	if err != nil || len(evals) == 0 {
		return "", err
	}
	newest := slices.MaxFunc(evals, func(a, b *api.Evaluation) int { return int(int64(a.CreateIndex) - int64(b.CreateIndex)) })
	return strings.Join(failures(newest.FailedTGAllocs), "; "), nil
}

// failures puts Nomad's metrics of a placement that failed into words.
func failures(groups map[string]*api.AllocationMetric) []string {
	var out []string
	for group, m := range groups {
		if m == nil {
			continue
		}
		if m.NodesEvaluated == 0 {
			out = append(out, fmt.Sprintf("group %q: no ready node in its datacenter and node pool", group))
			continue
		}
		for what, n := range m.ConstraintFiltered {
			out = append(out, fmt.Sprintf("group %q: %d nodes lack %s", group, n, what))
		}
		for what, n := range m.DimensionExhausted {
			out = append(out, fmt.Sprintf("group %q: %d nodes do not have enough %s", group, n, what))
		}
	}
	slices.Sort(out)
	return out
}

func number(n *uint64) uint64 {
	if n == nil {
		return 0
	}
	return *n
}
