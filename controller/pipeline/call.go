package pipeline

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// Errors of Run, wrapped in what they are about.
var (
	// ErrDeadline: the pipeline's, or a step's, has passed.
	ErrDeadline = errors.New("the deadline has passed")
	// ErrExpression: an expression has no value for this request.
	ErrExpression = errors.New("the expression has no value for this request")
	// ErrNoOutput: none of the steps that output names ran.
	ErrNoOutput = errors.New("no step of its output ran")
	// ErrInput: the request cannot be used.
	ErrInput = errors.New("invalid request")
)

// errUnneeded ends steps that the answer does not need any more. Nobody sees it.
var errUnneeded = errors.New("the step is no longer needed")

// Caller calls models.
type Caller interface {
	// Call returns the whole answer. It returns soon after ctx has ended, and may be called
	// many times at once. Its error is passed on by Run, wrapped in a StepError.
	Call(ctx context.Context, c Call) (Answer, error)
}

// Call is one request to a model.
type Call struct {
	Step string
	// Index is that of the value of for_each, from 0; -1 without for_each.
	Index    int
	Model    string
	Endpoint Endpoint
	// Messages is a JSON list, of the endpoint Chat; Prompt a text, of Completions.
	Messages json.RawMessage
	Prompt   string
	// Params are the further fields of the request, as JSON: what the step says of
	// max_tokens, temperature and params.
	Params map[string]json.RawMessage
	// Output: the answer may be the pipeline's own.
	Output bool
	// Emit takes pieces of the answer for the client, in their order, each piece of use by
	// itself; nil where nobody wants pieces. It keeps them while it is not known yet whether
	// this answer is the pipeline's, and may be slow. It does not keep p. After an error the
	// client is gone.
	Emit func(p []byte) error
}

// ID names the call within its request: the step, and for one of a for_each its position.
func (c Call) ID() string {
	if c.Index < 0 {
		return c.Step
	}
	return fmt.Sprintf("%s.%d", c.Step, c.Index)
}

// Answer is what a model answered.
type Answer struct {
	Text         string
	FinishReason string
	Usage        Usage
	// Body is the whole answer in the Caller's form, for its own use.
	Body any
}

// Usage counts tokens.
type Usage struct{ Prompt, Completion int64 }

// Total is the sum of both.
func (u Usage) Total() int64 { return u.Prompt + u.Completion }

// Add adds another one.
func (u *Usage) Add(o Usage) {
	u.Prompt += o.Prompt
	u.Completion += o.Completion
}

// Input is one request to a pipeline.
type Input struct {
	// Text is the last message of the user, or the prompt.
	Text string
	// Messages is a JSON list, Params a JSON object with the other fields of the request.
	Messages, Params json.RawMessage
	// Emit takes the pieces of the answer while it comes, where it is a step's own; nil: the
	// caller wants it only as a whole. It is called by one goroutine at a time.
	Emit func(p []byte) error
}

// Result is a pipeline's answer.
type Result struct {
	// Step is the step whose answer it is, empty where the output was computed.
	Step string
	// Answer is that step's; of a computed output it has only the text and a FinishReason.
	Answer Answer
	// Usage is the sum of all calls that ended.
	Usage Usage
}

// StepError says which step failed.
type StepError struct {
	Step string
	// Index is that of Call.
	Index int
	Err   error
}

// Error names the step.
func (e *StepError) Error() string {
	if e.Index >= 0 {
		return fmt.Sprintf("step %q, value %d: %v", e.Step, e.Index, e.Err)
	}
	return fmt.Sprintf("step %q: %v", e.Step, e.Err)
}

// Unwrap returns the error of the step.
func (e *StepError) Unwrap() error { return e.Err }

// deadline bounds a context, with a cause that says what has passed.
func deadline(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, d, fmt.Errorf("%w: %s", ErrDeadline, d))
}
