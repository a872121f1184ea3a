package responses

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"

	"remuda/internal/sim/openai"
	"remuda/internal/sim/text"
)

// most is how many responses are kept; the oldest are dropped.
const most = 1000

// Store keeps responses by their ids.
type Store struct {
	mu    sync.Mutex
	kept  map[string]*stored
	order []string
}

type stored struct {
	response Response
	input    []text.Message
	cancel   func() // nil once the response is finished
}

// Put keeps a response, or replaces it. Input is the conversation that it answers, and
// cancel ends its computation. A response that was cancelled or deleted stays so.
func (s *Store) Put(r Response, input []text.Message, cancel func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old, ok := s.kept[r.ID]; ok {
		if old.response.Status != Cancelled {
			old.response, old.cancel = r, cancel
		}
		return
	}
	if r.Background && cancel == nil {
		return // deleted while it was computed
	}
	if s.kept == nil {
		s.kept = map[string]*stored{}
	}
	s.kept[r.ID] = &stored{r, input, cancel}
	if s.order = append(s.order, r.ID); len(s.order) > most {
		delete(s.kept, s.order[0])
		s.order = s.order[1:]
	}
}

func (s *Store) find(id string) (*stored, *openai.Error) {
	if !strings.HasPrefix(id, "resp_") {
		return nil, &openai.Error{
			Status: http.StatusBadRequest, Type: "invalid_request_error", Param: "response_id",
			Message: fmt.Sprintf("Invalid 'response_id': '%s'. Expected an ID that begins with 'resp'.", id),
		}
	}
	r, ok := s.kept[id]
	if !ok {
		return nil, &openai.Error{
			Status: http.StatusNotFound, Type: "invalid_request_error", Param: "response_id",
			Message: fmt.Sprintf("Response with id '%s' not found.", id),
		}
	}
	return r, nil
}

// Get returns a response.
func (s *Store) Get(id string) (Response, *openai.Error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, err := s.find(id)
	if err != nil {
		return Response{}, err
	}
	return r.response, nil
}

// Conversation is what a response answers, and the response.
func (s *Store) Conversation(id string) ([]text.Message, *openai.Error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, err := s.find(id)
	if err != nil {
		return nil, err
	}
	if r.response.Status == Queued || r.response.Status == InProgress {
		return nil, openai.BadRequest("previous_response_id", "the response %s is %s: wait until it is finished.", id, r.response.Status)
	}
	return slices.Concat(r.input, r.response.Messages()), nil
}

// Delete forgets a response and ends its computation.
func (s *Store) Delete(id string) *openai.Error {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, err := s.find(id)
	if err != nil {
		return err
	}
	if r.cancel != nil {
		r.cancel()
	}
	delete(s.kept, id)
	s.order = slices.DeleteFunc(s.order, func(o string) bool { return o == id })
	return nil
}

// Cancel ends the computation of a response in the background.
func (s *Store) Cancel(id string) (Response, *openai.Error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, err := s.find(id)
	if err != nil {
		return Response{}, err
	}
	if !r.response.Background {
		return Response{}, &openai.Error{
			Status: http.StatusBadRequest, Type: "invalid_request_error", Param: "response_id",
			Message: "Cannot cancel a synchronous response.",
		}
	}
	if r.cancel != nil {
		r.cancel()
		r.response, r.cancel = r.response.Cancel(), nil
	}
	return r.response, nil
}
