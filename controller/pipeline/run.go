package pipeline

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/zclconf/go-cty/cty"
)

// Run answers one request. It returns when all its goroutines have ended: after the answer
// is there the steps that it does not need are cancelled, and after the first failure all of
// them are. Its error is that first failure, an ErrDeadline, or the cause of ctx.
//
// What of the answer was emitted before an error is the beginning of an answer that will
// not end.
func (p *Pipeline) Run(ctx context.Context, in Input, caller Caller) (Result, error) {
	input, err := p.input(in)
	if err != nil {
		return Result{}, err
	}
	ctx, stop := deadline(ctx, p.Deadline)
	defer stop()
	ctx, cancel := context.WithCancelCause(ctx)
	x := &run{p: p, ctx: ctx, fail: cancel, caller: caller, input: input, stream: in.Emit != nil, steps: make([]stepRun, len(p.Steps))}
	for i := range x.steps {
		s := &x.steps[i]
		s.done = make(chan struct{})
		s.ctx, s.cancel = context.WithCancelCause(ctx)
	}
	x.choice = newChoice(p.candidates, in.Emit, x.onlyNeeds)
	var wg sync.WaitGroup
	for i := range x.steps {
		wg.Go(func() {
			err := x.step(i)
			// A step that was cancelled says so; the reason is known already.
			if err != nil && x.steps[i].ctx.Err() == nil {
				x.fail(err)
			}
			x.steps[i].cancel(errUnneeded)
		})
	}
	result, err := x.result()
	if err != nil {
		x.fail(err)
	} else {
		x.fail(errUnneeded)
	}
	wg.Wait()
	if err != nil {
		return Result{}, context.Cause(x.ctx)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	result.Usage = x.usage
	return result, nil
}

// run is one request while it is answered.
type run struct {
	p      *Pipeline
	ctx    context.Context
	fail   context.CancelCauseFunc
	caller Caller
	input  cty.Value
	stream bool
	choice *choice
	steps  []stepRun

	mu    sync.Mutex
	usage Usage // guarded by mu
}

// stepRun is a step of one request. What is below done may be read once that is closed.
type stepRun struct {
	ctx    context.Context
	cancel context.CancelCauseFunc

	done    chan struct{}
	skipped bool
	answers []Answer
	value   cty.Value
}

// onlyNeeds ends all steps but the one whose answer is the pipeline's. What that one needs
// is done already.
func (x *run) onlyNeeds(chosen int) {
	for i := range x.steps {
		if i != chosen {
			x.steps[i].cancel(errUnneeded)
		}
	}
}

// choose notes what becomes of a step. By that another one may be chosen, and this one be
// cancelled, so that a client that is gone is not this step's own failure.
func (x *run) choose(i int, c candidate) {
	if err := x.choice.set(i, c); err != nil {
		x.fail(err)
	}
}

// await waits for steps to be done.
func (x *run) await(ctx context.Context, steps []int) error {
	for _, i := range steps {
		select {
		case <-x.steps[i].done: // first: what is done is worth more than a failure elsewhere
			continue
		default:
		}
		select {
		case <-x.steps[i].done:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// step runs a step from its start to its end.
func (x *run) step(i int) error {
	s, r := x.p.Steps[i], &x.steps[i]
	failed := func(index int, err error) error { return &StepError{Step: s.Name, Index: index, Err: err} }
	if err := x.await(r.ctx, s.deps); err != nil {
		return err
	}
	scope := x.scope(s.deps)
	runs := true
	if s.when != nil {
		v, err := evaluate("when", s.when, wantBool, scope)
		if err != nil {
			return failed(-1, err)
		}
		runs = v.True()
	}
	if !runs {
		r.skipped, r.value = true, s.nothing()
		close(r.done)
		x.choose(i, candidateSkipped)
		return nil
	}
	x.choose(i, candidateRuns)
	var err error
	if s.FanOut {
		err = x.fanOut(s, r, scope)
	} else {
		var a Answer
		if a, err = x.call(r.ctx, i, -1, scope); err != nil {
			return err
		}
		r.answers = []Answer{a}
	}
	if err != nil {
		return err
	}
	r.value = s.value(r.answers)
	close(r.done)
	return nil
}

// fanOut makes the calls of a for_each.
func (x *run) fanOut(s *Step, r *stepRun, scope scope) error {
	list, err := evaluate("for_each", s.forEach, wantCollection, scope)
	if err != nil {
		return &StepError{Step: s.Name, Index: -1, Err: err}
	}
	ctx, cancel := context.WithCancelCause(r.ctx)
	defer cancel(nil)
	slots := make(chan struct{}, s.Parallel)
	r.answers = make([]Answer, list.LengthInt())
	var wg sync.WaitGroup
	n := 0
	for it := list.ElementIterator(); it.Next(); n++ {
		key, value := it.Element()
		index, each := n, scope.with(key, value)
		wg.Go(func() {
			select {
			case slots <- struct{}{}:
				defer func() { <-slots }()
			case <-ctx.Done():
				return
			}
			var err error
			if r.answers[index], err = x.call(ctx, x.indexOf(s), index, each); err != nil {
				cancel(err) // the first one counts
			}
		})
	}
	wg.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

func (x *run) indexOf(s *Step) int {
	for i, o := range x.p.Steps {
		if o == s {
			return i
		}
	}
	return -1
}

// call makes one call.
func (x *run) call(ctx context.Context, i, index int, scope scope) (Answer, error) {
	s := x.p.Steps[i]
	failed := func(err error) (Answer, error) {
		return Answer{}, &StepError{Step: s.Name, Index: index, Err: err}
	}
	c, err := s.request(index, scope)
	if err != nil {
		return failed(err)
	}
	if c.Output = x.choice.is(i); c.Output && x.stream {
		c.Emit = func(p []byte) error { return x.choice.pass(i, p) }
	}
	bounded := ctx
	if s.Deadline > 0 {
		var stop context.CancelFunc
		bounded, stop = deadline(ctx, s.Deadline)
		defer stop()
	}
	a, err := x.caller.Call(bounded, c)
	if err != nil {
		if ctx.Err() == nil && bounded.Err() != nil {
			err = context.Cause(bounded)
		}
		return failed(err)
	}
	x.mu.Lock()
	x.usage.Add(a.Usage)
	x.mu.Unlock()
	return a, nil
}

// result waits for the answer.
func (x *run) result() (Result, error) {
	if len(x.p.candidates) == 0 {
		return x.computed()
	}
	for _, i := range x.p.candidates {
		if err := x.await(x.ctx, []int{i}); err != nil {
			return Result{}, err
		}
		if r := &x.steps[i]; !r.skipped {
			return Result{Step: x.p.Steps[i].Name, Answer: r.answers[0]}, nil
		}
	}
	return Result{}, fmt.Errorf("output: %w: the \"when\" of each of its steps %q was false", ErrNoOutput, x.p.Outputs())
}

func (x *run) computed() (Result, error) {
	if err := x.await(x.ctx, x.p.outputDeps); err != nil {
		return Result{}, err
	}
	v, err := evaluate("output", x.p.output, wantOutput, x.scope(x.p.outputDeps))
	if err != nil {
		return Result{}, err
	}
	if v.Type() == cty.String {
		return Result{Answer: Answer{Text: v.AsString(), FinishReason: "stop"}}, nil
	}
	text, reason := v.GetAttr("text"), v.GetAttr("finish_reason")
	if text.IsNull() || reason.IsNull() {
		return Result{}, errors.New("output: the step has no text")
	}
	return Result{Answer: Answer{Text: text.AsString(), FinishReason: reason.AsString()}}, nil
}
