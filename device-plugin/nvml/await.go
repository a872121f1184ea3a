package nvml

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// limits say how long the calls of NVML may take.
type limits struct {
	// late is from when on a call that has not returned is reported, before it counts as hanging; 0 for never.
	late time.Duration
	// hang is how long one call may take before it counts as hanging.
	hang time.Duration
	// giveUp is how long one call may take before its process is ended. Between the two the
	// process is waited for: what it waits for in the kernel often ends, and it cannot be killed
	// there anyway.
	giveUp time.Duration
}

// errUnusable is wrapped by errors after which the process can only be ended.
var errUnusable = errors.New("the NVML worker cannot be used any more")

// fault is an error of NVML itself, and not one that it returned.
type fault struct {
	cause string // as the metric has it
	text  string
}

// The causes.
const (
	causeLate  = "late" // no fault: the call may still return
	causeHang  = "hang"
	causeSlow  = "slow"
	causeCrash = "crash"
	causeError = "error" // any error that is no fault
)

func (f *fault) Error() string { return f.text }

func faultOf(cause, format string, args ...any) error {
	return &fault{cause, fmt.Sprintf(format, args...)}
}

// causeOf is the cause of an error.
func causeOf(err error) string {
	var f *fault
	if errors.As(err, &f) {
		return f.cause
	}
	return causeError
}

// hanging is the error of a call that does not return.
func hanging(call string) error { return faultOf(causeHang, "NVML hangs in %s", call) }

// Late begins what is said of a GPU while a call of NVML for it has not returned for longCall. It is no
// fault: the GPU is given to no task meanwhile, and as before once its reading is complete.
const Late = "NVML has not returned from "

// await waits for the reply of a process whose call is in the given slot of its record. Every call
// that is late or hangs is passed to hangs, once for each, and so is a process that works but takes longer
// than giveUp for the whole; it is slow then. Calls that end in time never count as hanging, however many there
// are. An error wraps errUnusable if the process is gone, or should be ended.
func await(ctx context.Context, p *process, slot int, answer <-chan Message, l limits, hangs func(error)) (Message, error) {
	often := l.hang / 10
	if l.late > 0 {
		often = min(often, l.late/10)
	}
	check := time.NewTicker(max(often, time.Millisecond))
	defer check.Stop()
	begin := time.Now()
	late, reported, slow := "", "", false
	idle := begin // since when the process has been seen outside of any call
	for {
		select {
		case m := <-answer:
			err := replyError(m)
			if err != nil && m.Fatal {
				err = fmt.Errorf("%w%w", err, hidden{errUnusable})
			}
			return m, err
		case <-p.gone:
			select { // its last message counts
			case m := <-answer:
				if err := replyError(m); err != nil {
					return m, fmt.Errorf("%w%w", err, hidden{errUnusable})
				}
			default:
			}
			return Message{}, fmt.Errorf("%w%w", p.ending(), hidden{errUnusable})
		case <-ctx.Done():
			return Message{}, ctx.Err()
		case <-check.C:
			symbol, since := p.call(slot)
			if symbol != "" {
				idle = time.Now()
			}
			switch name := at(slot, symbol); {
			case since >= l.giveUp:
				return Message{}, fmt.Errorf("%w%w", hanging(name), hidden{errUnusable})
			case since >= l.hang && name != reported:
				reported = name
				hangs(hanging(name))
			case l.late > 0 && since >= l.late && since < l.hang && name != late:
				late = name
				hangs(faultOf(causeLate, Late+"%s", name))
			case since < l.hang && time.Since(begin) >= l.giveUp && !slow && symbol != "":
				slow = true
				hangs(faultOf(causeSlow, "NVML is slow: it has not read the GPU within %s, and is now in %s", l.giveUp, name))
			case time.Since(idle) >= l.hang:
				return Message{}, fmt.Errorf("the NVML worker does not answer%w", hidden{errUnusable})
			}
		}
	}
}

// hidden is an error that is found by errors.Is and not printed.
type hidden struct{ error }

// Error prints nothing.
func (hidden) Error() string { return "" }

// Unwrap returns what is hidden.
func (h hidden) Unwrap() error { return h.error }
