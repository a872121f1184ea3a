package dispatch

import (
	"maps"
	"slices"
	"time"
)

// wishLasts is how long a wish is worth telling whose client waits no more: a controller
// that was away for longer must not bring up what nobody asks for. Of those who wait on it
// hears from the queues of each report.
const wishLasts = time.Minute

// wants are the models that clients asked for and that have no engine, for the
// controller. The dispatcher's mu guards it.
type wants struct {
	// changed gets a word when a request begins or ends, or other orders came; nil
	// where nobody listens.
	changed chan struct{}
	// models are those that are wanted and not yet reported, with the time at which they
	// last were.
	models map[string]time.Time
	// reported are those that the last report had; one that is not among them is urgent.
	// The zero time: nobody wants it any more.
	reported map[string]time.Time
	// urgent gets a word when a model is wanted that was not when it was last reported;
	// nil where nobody listens.
	urgent chan struct{}
}

// tell never waits.
func (w *wants) tell() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// want notes that clients want a model, for a report soon.
func (w *wants) want(now time.Time, model string) {
	if w.changed == nil {
		return
	}
	if w.models == nil {
		w.models = map[string]time.Time{}
	}
	_, noted := w.models[model]
	w.models[model] = now
	if noted {
		return
	}
	if _, known := w.reported[model]; !known {
		w.hurry()
		return
	}
	w.tell()
}

// hurry has a report sent at once. It never waits.
func (w *wants) hurry() {
	w.tell()
	select {
	case w.urgent <- struct{}{}:
	default:
	}
}

// cancel forgets a wish that was not told yet, or is just being told: nobody has it any
// more.
func (w *wants) cancel(model string) {
	delete(w.models, model)
	if _, ok := w.reported[model]; ok {
		w.reported[model] = time.Time{}
	}
}

// served forgets a wish that is fulfilled, told or not.
func (w *wants) served(model string) {
	delete(w.models, model)
	delete(w.reported, model)
}

// Changed gets a word when a request begins or ends, or other orders came, and Urgent when a model is
// wanted that was not when it was last reported; nil without Config.Reports.
func (d *Dispatcher) Changed() <-chan struct{} { return d.wants.changed }

// Urgent is described at Changed.
func (d *Dispatcher) Urgent() <-chan struct{} { return d.wants.urgent }

// TakeWanted returns at most so many of the models that are wanted, with when they last were,
// for a report. They are not returned again unless they are asked for again: that requests still wait is in
// the queues.
func (d *Dispatcher) TakeWanted(most int) map[string]time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	w := &d.wants
	select {
	case <-w.urgent: // it is told now
	default:
	}
	now := time.Now()
	var names []string
	for name, asked := range w.models {
		if now.Sub(asked) > wishLasts {
			delete(w.models, name)
			continue
		}
		names = append(names, name)
	}
	slices.Sort(names)
	names = names[:min(most, len(names))]
	w.reported = make(map[string]time.Time, len(names))
	for _, name := range names {
		w.reported[name] = w.models[name]
		delete(w.models, name)
	}
	return maps.Clone(w.reported)
}

// GiveWanted takes back what was not reported and is not served by now.
func (d *Dispatcher) GiveWanted(wanted map[string]time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	w := &d.wants
	for name := range wanted {
		if asked := w.reported[name]; !asked.IsZero() && d.table.Wanted(name) && w.models[name].Before(asked) {
			w.want(asked, name)
		}
	}
	w.reported = nil
}
