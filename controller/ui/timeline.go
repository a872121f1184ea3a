package ui

import (
	"html/template"
	"strconv"
	"strings"
	"time"

	"remuda/controller/api"
)

// timelineStates are the states of a replica with their classes.
var timelineStates = []struct{ state, class string }{{"HOT", "hot"}, {"moving", "moving"}, {"WARM", "warm"}, {"COLD", "cold"}, {"failed", "failed"}}

// timeline is what a replica was in the hour before end, as SVG: a second is a unit, the newest at the
// right edge. Nothing that users write is in it.
func timeline(end time.Time, r api.ReplicaHistory) template.HTML {
	const width = api.HistorySteps * time.Minute
	start := end.Add(-width)
	if !r.GoneAt.IsZero() {
		end = r.GoneAt
	}
	var rects strings.Builder
	in := map[string]time.Duration{}
	for i, s := range r.States {
		from, to := s.Since.Sub(start), end.Sub(start)
		if i+1 < len(r.States) {
			to = min(to, r.States[i+1].Since.Sub(start))
		}
		from = max(from, 0)
		if to <= from {
			continue
		}
		in[s.State] += to - from
		for _, known := range timelineStates {
			if known.state == s.State {
				rects.WriteString(`<rect class="` + known.class + `" x="` + seconds(from) + `" width="` + seconds(to-from) + `" height="12"/>`)
			}
		}
	}
	var parts []string
	for _, known := range timelineStates {
		if d := in[known.state]; d > 0 {
			parts = append(parts, known.state+" "+d.Round(time.Second).String())
		}
	}
	label := "In the last hour: " + strings.Join(parts, ", ")
	return template.HTML(`<svg class="bar" role="img" aria-label="` + template.HTMLEscapeString(label) + `" viewBox="0 0 ` + seconds(width) + ` 12" preserveAspectRatio="none">` + rects.String() + `</svg>`) // escaped above
}

func seconds(d time.Duration) string { return strconv.FormatFloat(d.Seconds(), 'f', 0, 64) }
