package queue

import (
	"fmt"
	"math"
	"strings"
	"time"
)

const (
	budgetSlices = 32
	// MinBudgetWindow is the shortest window of a Budget.
	MinBudgetWindow = 100 * time.Millisecond
)

// BudgetConfig says how many retries there may be.
type BudgetConfig struct {
	// Ratio is the share of the requests of the window that may be retried, 0
	// or more: 0.2 allows one retry for five requests.
	Ratio float64
	// Floor is how many retries per second are allowed on top of that, 0 or
	// more. With little traffic it is all there is.
	Floor float64
	// Window is the time that both are counted over, at least
	// MinBudgetWindow.
	Window time.Duration
}

func (c BudgetConfig) validate() error {
	var bad []string
	for _, f := range []struct {
		name string
		v    float64
	}{{"Ratio", c.Ratio}, {"Floor", c.Floor}} {
		if !(f.v >= 0) || math.IsInf(f.v, 1) {
			bad = append(bad, fmt.Sprintf("%s is %v: must be 0 or more", f.name, f.v))
		}
	}
	if c.Window < MinBudgetWindow {
		bad = append(bad, fmt.Sprintf("Window is %s: must be at least %s", c.Window, MinBudgetWindow))
	}
	if bad != nil {
		return fmt.Errorf("invalid retry budget: %s", strings.Join(bad, "; "))
	}
	return nil
}

// Budget bounds retries, so that engines that fail are not buried under the
// attempts of those whom they failed. Whenever it grants a retry,
//
//	retries of the last Window <= Ratio * requests of the last Window + Floor * Window
//
// with this retry counted, and each request counts for one Window only. Time is
// in slices of a 32nd of the window; what the slices leave open is decided
// against the retry.
type Budget struct {
	cfg      BudgetConfig
	requests window
	retries  window // one slice more: the one that the window's start is in
}

// NewBudget returns a budget of which nothing is spent.
func NewBudget(cfg BudgetConfig) (*Budget, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	slice := cfg.Window / budgetSlices
	return &Budget{cfg: cfg, requests: newWindow(slice, budgetSlices), retries: newWindow(slice, budgetSlices+1)}, nil
}

// Request counts the first attempt of a request.
func (b *Budget) Request(now time.Time) {
	b.move(now)
	b.requests.add()
}

// Retry asks for another attempt. If ok, it is spent. Else at is when to ask
// again: when what was spent will have left the window. Requests that come
// until then may allow it sooner. Where nothing but new requests can allow it,
// at is one Window from now.
func (b *Budget) Retry(now time.Time) (ok bool, at time.Time) {
	b.move(now)
	if b.allows(0) {
		b.retries.add()
		return true, time.Time{}
	}
	for after := 1; after <= budgetSlices+1; after++ {
		if b.allows(after) {
			return false, b.retries.start(after)
		}
	}
	return false, now.Add(b.cfg.Window)
}

// move brings both windows to a time.
func (b *Budget) move(now time.Time) {
	b.requests.move(now)
	b.retries.move(now)
}

// allows tells whether one more retry fits so many slices from now, if nothing
// happens until then.
func (b *Budget) allows(after int) bool {
	spent := b.retries.sum(budgetSlices + 1 - after)
	requests := b.requests.sum(budgetSlices - after)
	const rounding = 1e-9
	return float64(spent+1) <= b.cfg.Ratio*float64(requests)+b.cfg.Floor*b.cfg.Window.Seconds()+rounding
}
