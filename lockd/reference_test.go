package lockd

import (
	"fmt"
	"strings"
	"testing"

	"remuda/internal/testkit/reference"
	"remuda/lockd/wire"
)

func TestReferenceMetrics(t *testing.T) {
	var r reference.Recorder
	newMetrics(nil, &r)
	reference.Section(t, "metrics.md", "lockd", "## Lock server\n\nAt the address in `remuda lockd -metrics`.\n\n"+reference.Metrics(t, r.Collectors...))
}

func TestReferenceAPI(t *testing.T) {
	protocol := reference.Source(t, "lockd/wire")
	var events [][]string
	for _, e := range protocol.Fields("Event") {
		if e.Name != "Event" {
			events = append(events, []string{reference.Code(strings.ToLower(e.Name)), reference.Reworded(e.Doc, eventNames(protocol))})
		}
	}
	var codes, states [][]string
	for _, path := range []string{"lockd/lock", "lockd"} {
		for _, c := range reference.Source(t, path).Constants() {
			switch {
			case c.Type == "State":
				states = append(states, []string{reference.Code(c.Value), reference.Plain(t, c)})
			case strings.HasPrefix(strings.ToLower(c.Name), "code"):
				codes = append(codes, []string{reference.Code(c.Value), reference.Plain(t, c)})
			}
		}
	}
	reference.Section(t, "api.md", "lockd", fmt.Sprintf("## Lock server\n\nThe protocol of `remuda lockd`: JSON objects, one on each line of at most %d bytes, over its Unix socket or over TCP. "+
		"A client that acquires a lock keeps its connection open: the lock is released when the connection ends.\n\n%s", wire.MaxLine, protocol.Overview(t))+
		"\n### Requests\n\n"+reference.JSON(t, wire.Request{}, false)+
		"\n### Fields of events\n\n"+reference.Table([]string{"Field", "Meaning"}, events)+
		"\n### Groups in a status\n\n"+reference.JSON(t, wire.Group{}, false)+
		"\n### States of a lock\n\n"+reference.Table([]string{"State", "Meaning"}, states)+
		"\n### Codes of refusals\n\n"+reference.Table([]string{"Code", "Meaning"}, codes))
}

// eventNames are the names in the comments of events as they are on the wire.
func eventNames(p *reference.Package) map[string]string {
	names := map[string]string{}
	for _, f := range p.Fields("Event") {
		names[f.Name] = strings.ToLower(f.Name)
	}
	for _, c := range p.Constants() {
		if c.Name == "Granted" || c.Name == "Refused" || c.Name == "Waiting" || c.Name == "Pong" {
			names[c.Name] = c.Value
		}
	}
	return names
}
