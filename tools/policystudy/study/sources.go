package study

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"remuda/tools/policystudy/scalesim"
)

// Source makes a trace. Only Train's half may be looked at while anything is tuned.
type Source struct {
	Name string
	// Slots of a replica in its world.
	Slots int
	// Load makes the first half of the trace, or the whole of it.
	Load func(firstHalf bool) (*scalesim.Trace, error)
}

// ServeGen makes the days from 0 to 2*half of the clients of one of ServeGen's models, scaled. Its
// archive has their arrivals; the lengths of requests are those of conversations.
func ServeGen(path string, scale float64, half time.Duration) Source {
	name := fmt.Sprintf("%s-1/%.0f", strings.TrimSuffix(filepath.Base(path), ".tar.gz"), 1/scale)
	return Source{Name: name, Slots: 8, Load: func(firstHalf bool) (*scalesim.Trace, error) {
		f, err := os.Open(path)
		if err != nil {
			return nil, fmt.Errorf("the ServeGen trace %s: %w", name, err)
		}
		defer f.Close()
		clients, err := scalesim.ReadServeGen(name, f)
		if err != nil {
			return nil, err
		}
		until := half
		if !firstHalf {
			until *= 2
		}
		return clients.Generate(1, scale, 0, until, conversations{}, scalesim.DefaultSpeed())
	}}
}

// conversations draws lengths from lognormal distributions with the medians 1000 and 150.
type conversations struct{}

// Draw implements scalesim.Lengths.
func (conversations) Draw(rng *rand.Rand) (context, generated int32) {
	draw := func(median, sigma float64) int32 {
		return int32(math.Min(math.Max(median*math.Exp(sigma*rng.NormFloat64()), 1), 1<<17))
	}
	return draw(1000, 1), draw(150, 0.8)
}

// CSV is a log of requests in the format of scalesim.ReadRequests.
func CSV(path string, slots int) Source {
	name := strings.TrimSuffix(filepath.Base(path), ".csv")
	return Source{Name: name, Slots: slots, Load: func(firstHalf bool) (*scalesim.Trace, error) {
		f, err := os.Open(path)
		if err != nil {
			return nil, fmt.Errorf("the trace %s: %w", name, err)
		}
		defer f.Close()
		t, err := scalesim.ReadRequests(name, f, scalesim.DefaultSpeed())
		if err != nil || !firstHalf {
			return t, err
		}
		first, _ := t.Halves()
		return first, nil
	}}
}

// Synthetic are loads of six days with about 60 requests at work, by name.
func Synthetic() map[string]Source {
	hour := func(t time.Duration) float64 { return math.Mod(t.Hours(), 24) }
	out := map[string]Source{}
	add := func(name string, rate func(t time.Duration, day *rand.Rand) float64, longer func(t time.Duration) float64) {
		out[name] = Source{Name: name, Slots: 8, Load: func(firstHalf bool) (*scalesim.Trace, error) {
			span := 6 * 24 * time.Hour
			rng := rand.New(rand.NewPCG(7, uint64(len(name))))
			t := &scalesim.Trace{Name: name, Span: span}
			const peak = 60
			for at := 0.0; ; {
				at += rng.ExpFloat64() / peak
				now := time.Duration(at * float64(time.Second))
				if now >= span {
					break
				}
				minute := rand.New(rand.NewPCG(11, uint64(now/time.Minute)))
				if rng.Float64()*peak >= rate(now, minute) {
					continue
				}
				c, g := conversations{}.Draw(rng)
				g = max(int32(float64(g)*longer(now)), 1)
				t.Arrivals = append(t.Arrivals, scalesim.Arrival{At: now, Service: scalesim.DefaultSpeed().Service(c, g), Context: c, Generated: g})
			}
			if firstHalf {
				t, _ = t.Halves()
			}
			return t, nil
		}}
	}
	same := func(time.Duration) float64 { return 1 }
	diurnal := func(t time.Duration) float64 { return 7 + 5*math.Sin(2*math.Pi*(hour(t)-8)/24) }
	add("diurnal", func(t time.Duration, _ *rand.Rand) float64 { return diurnal(t) }, same)
	add("bursts", func(t time.Duration, m *rand.Rand) float64 {
		r := 6.0
		if m.Float64() < 0.03 {
			r *= 1 + 3*m.Float64()
		}
		return r
	}, same)
	add("steps", func(t time.Duration, _ *rand.Rand) float64 {
		level := rand.New(rand.NewPCG(13, uint64(t/(3*time.Hour))))
		return 2 + 12*level.Float64()
	}, same)
	add("flash", func(t time.Duration, _ *rand.Rand) float64 {
		crowd := rand.New(rand.NewPCG(17, uint64(t/(24*time.Hour))))
		since := t%(24*time.Hour) - time.Duration(crowd.Float64()*20*float64(time.Hour))
		if since >= 0 && since < 20*time.Minute {
			return diurnal(t) + 30*math.Min(since.Minutes()/2, 1)
		}
		return diurnal(t)
	}, same)
	add("drift", func(t time.Duration, _ *rand.Rand) float64 { return diurnal(t) / 1.3 },
		func(t time.Duration) float64 { return 1 + 0.6*math.Sin(2*math.Pi*t.Hours()/31) })
	add("on-off", func(t time.Duration, _ *rand.Rand) float64 {
		if h := hour(t); h >= 9 && h < 17 {
			return 12
		}
		return 0
	}, same)
	return out
}
