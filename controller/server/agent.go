package server

import (
	"bytes"
	_ "embed" // for the description
	"fmt"
	"net/http"

	"github.com/prometheus/common/expfmt"

	"remuda/controller/api"
	"remuda/internal/version"
)

// description is the OpenAPI document; TestReferenceOpenAPI generates it.
//
//go:embed openapi.json
var description []byte

func (s *Server) openAPI(*request) (answer, error) { return answer{raw: description}, nil }

func (s *Server) leaderStatus(*request) (answer, error) {
	l := s.cfg.Raft.Leader()
	return answer{value: api.LeaderStatus{ID: l.ID, Address: l.Address}}, nil
}

func (s *Server) agentSelf(*request) (answer, error) {
	age, known := s.lastContact()
	lead, _ := s.cfg.Raft.Leadership()
	v := s.cfg.Raft.Store().View()
	return answer{value: api.AgentSelf{
		ID: s.cfg.Raft.ID(), Version: version.String(), Address: s.cfg.Raft.Address(), Leader: lead.Leader, Index: v.Index(),
		LastContact: api.Duration(age), KnownLeader: known,
		ACL:       api.ACLStatus{Enabled: s.cfg.ACL, Bootstrapped: bootstrapped(v)},
		Reconcile: s.cfg.Reconciler.Status(),
		Gateways:  s.cfg.Loads.Gateways(),
	}}, nil
}

func (s *Server) agentHealth(*request) (answer, error) {
	h := api.AgentHealth{Problems: []string{}}
	bad := func(format string, args ...any) { h.Problems = append(h.Problems, fmt.Sprintf(format, args...)) }
	if err := s.cfg.Raft.Err(); err != nil {
		bad("this server has failed: %v", err)
	}
	if _, known := s.lastContact(); !known {
		bad("no cluster leader is known to this server")
	}
	if r := s.cfg.Reconciler.Status(); r.Active {
		for _, l := range []struct {
			name string
			link api.LinkStatus
		}{{"Nomad", r.Nomad}, {"Consul", r.Consul}} {
			if !l.link.Known {
				bad("cannot reach %s: %s", l.name, l.link.Error)
			}
		}
		if r.LastError != "" {
			bad("reconciler: %s", r.LastError)
		}
	}
	h.Healthy = len(h.Problems) == 0
	status := http.StatusOK
	if !h.Healthy {
		status = http.StatusServiceUnavailable
	}
	return answer{value: h, status: status}, nil
}

func (s *Server) metricsText(*request) (answer, error) {
	families, err := s.cfg.Gatherer.Gather()
	if err != nil {
		return answer{}, fmt.Errorf("gather metrics: %w", err)
	}
	var b bytes.Buffer
	format := expfmt.NewFormat(expfmt.TypeTextPlain)
	enc := expfmt.NewEncoder(&b, format)
	for _, f := range families {
		if err := enc.Encode(f); err != nil {
			return answer{}, fmt.Errorf("write metrics: %w", err)
		}
	}
	return answer{raw: b.Bytes(), contentType: string(format)}, nil
}

func (s *Server) live(*request) (answer, error) {
	return answer{raw: []byte("alive\n"), contentType: contentText}, nil
}

// ready tells whether requests that are sent here can be answered: this server goes on
// and knows a leader.
func (s *Server) ready(*request) (answer, error) {
	if err := s.cfg.Raft.Err(); err != nil {
		return answer{}, &api.Error{Status: http.StatusServiceUnavailable, Code: api.CodeClosing, Message: fmt.Sprintf("this server has failed: %v", err), RetryAfter: retryLeader}
	}
	if s.cfg.Raft.Leader().ID == "" {
		return answer{}, &api.Error{Status: http.StatusServiceUnavailable, Code: api.CodeNoLeader, Message: "no cluster leader is known to this server", RetryAfter: retryLeader}
	}
	return answer{raw: []byte("ready\n"), contentType: contentText}, nil
}
