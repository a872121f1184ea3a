package server

import (
	"errors"
	"io"
	"net/http"
	"slices"

	"github.com/hashicorp/go-memdb"

	"remuda/controller/api"
	"remuda/controller/raft"
	"remuda/controller/state"
)

func (s *Server) raftConfiguration(*request, *state.View, memdb.WatchSet) (answer, error) {
	peers, err := s.cfg.Raft.Peers()
	if err != nil {
		return answer{}, err
	}
	leader := s.cfg.Raft.Leader()
	return answer{value: api.RaftConfiguration{Servers: list(peers, func(p raft.Peer) api.RaftServer {
		return api.RaftServer{ID: p.ID, Address: p.Address, Leader: p.ID == leader.ID}
	})}}, nil
}

// member returns why no server has that ID, nil where one has, and how many there are.
func (s *Server) member(id string) (int, error) {
	peers, err := s.cfg.Raft.Peers()
	if err != nil {
		return 0, err
	}
	if !slices.ContainsFunc(peers, func(p raft.Peer) bool { return p.ID == id }) {
		return 0, notFound("server %q does not exist: see \"remuda raft list-peers\"", id)
	}
	return len(peers), nil
}

func (s *Server) removePeer(rq *request, _ *state.View) (answer, error) {
	id := rq.path["id"]
	n, err := s.member(id)
	if err != nil {
		return answer{}, err
	}
	if n == 1 {
		return answer{}, conflict("server %s is the only one: cannot remove it", id)
	}
	if err := s.cfg.Raft.RemovePeer(rq.ctx, id); err != nil {
		return answer{}, err
	}
	s.log.Info("server removed", "id", id, "by", by(rq.token))
	return answer{}, nil
}

func (s *Server) transferLeadership(rq *request, _ *state.View) (answer, error) {
	id := rq.query.Get("id")
	peers, err := s.cfg.Raft.Peers()
	if err != nil {
		return answer{}, err
	}
	if id != "" {
		if _, err := s.member(id); err != nil {
			return answer{}, err
		}
	}
	switch {
	case len(peers) == 1:
		return answer{}, conflict("this is the only server: there is no other server to transfer leadership to")
	case id == s.cfg.Raft.ID():
		return answer{}, conflict("server %s is already the leader", id)
	}
	if err := s.cfg.Raft.TransferLeadership(rq.ctx, id); err != nil {
		return answer{}, err
	}
	s.log.Info("leadership transferred", "to", id, "by", by(rq.token))
	return answer{}, nil
}

func (s *Server) saveSnapshot(_ *request, v *state.View, _ memdb.WatchSet) (answer, error) {
	return answer{contentType: contentBytes, stream: func(w io.Writer) error {
		_, err := v.WriteSnapshot(w)
		return err
	}}, nil
}

func (s *Server) restoreSnapshot(rq *request, _ *state.View) (answer, error) {
	info, err := s.cfg.Raft.RestoreSnapshot(rq.ctx, rq.Body)
	var long *http.MaxBytesError
	if errors.As(err, &long) {
		return answer{}, tooLarge(long.Limit)
	}
	if err != nil {
		return answer{}, err
	}
	s.log.Info("snapshot restored", "index", info.Index, "bytes", info.Bytes, "by", by(rq.token))
	out := api.SnapshotInfo{Version: info.Version, Index: info.Index, Rows: map[string]int{}, Bytes: info.Bytes}
	for table, n := range info.Rows {
		out.Rows[string(table)] = n
	}
	return answer{value: out}, nil
}
