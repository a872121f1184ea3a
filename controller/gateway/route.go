package gateway

import (
	"net/http"
	"slices"
	"strings"

	"remuda/controller/gateway/openai"
)

// route is one of the paths that go to engines.
type route struct {
	// method is POST but for those of storedRoutes.
	method, path string
	// label is the route's name in metrics, spanName in traces.
	label, spanName string
	// about says what the route does, for the reference.
	about string
	// api is the form of its errors and streams.
	api openai.API
	// streams: an answer may be a stream of events, which its client can be told in that it waits.
	// generates: the answer has tokens of its own.
	streams, generates bool
	// light: an answer takes no work of the model, so that nothing is estimated where the engine says
	// nothing.
	light bool
	// asksUsage: the engine of a stream is asked for its usage by stream_options.
	asksUsage bool
	// continues: a stream may go on at another engine, and a pipeline may be called.
	continues bool
	// form: the body is multipart/form-data.
	form bool
	// accepts are the types of answers that are neither JSON nor a stream of events: whole types, or
	// beginnings that end in a slash.
	accepts []string
	// stored: it is about a response that an engine keeps, whose tokens were counted when it was made.
	stored bool
	// dialects are the engines that have the route.
	dialects []string
}

const (
	dialectVLLM   = "vllm"
	dialectSGLang = "sglang"
	dialectOllama = "ollama"
	dialectSim    = "sim"
)

var (
	routeChat = &route{path: "/v1/chat/completions", label: "chat", streams: true, generates: true, asksUsage: true, continues: true,
		about:    "Answers a chat. The body names the model, or a pipeline.",
		dialects: []string{dialectVLLM, dialectSGLang, dialectOllama, dialectSim}}
	routeCompletions = &route{path: "/v1/completions", label: "completions", streams: true, generates: true, asksUsage: true, continues: true,
		about:    "Continues a text. The body names the model, or a pipeline.",
		dialects: []string{dialectVLLM, dialectSGLang, dialectOllama, dialectSim}}
	routeResponses = &route{path: "/v1/responses", label: "responses", api: openai.Responses, streams: true, generates: true,
		about:    "Makes a response (OpenAI's Responses API). One that names a `previous_response_id` goes to the replica that made that.",
		dialects: []string{dialectVLLM, dialectSGLang, dialectOllama, dialectSim}}
)

// engineRoutes are the routes that go to the engines of the model that the body names.
var engineRoutes = routesByPath(
	routeChat, routeCompletions, routeResponses,
	&route{path: "/v1/messages", label: "messages", api: openai.Messages, streams: true, generates: true,
		about: "Answers a chat (Anthropic's Messages API).", dialects: []string{dialectVLLM, dialectSGLang, dialectOllama, dialectSim}},
	&route{path: "/v1/messages/count_tokens", label: "count_tokens", api: openai.Messages, light: true,
		about: "Counts the tokens of a chat (Anthropic's Messages API).", dialects: []string{dialectVLLM, dialectSGLang, dialectSim}},
	&route{path: "/v1/embeddings", label: "embeddings", accepts: []string{contentBytes}, // vLLM's encoding_format "bytes"
		about: "Computes embeddings.", dialects: []string{dialectVLLM, dialectSGLang, dialectOllama, dialectSim}},
	&route{path: "/rerank", label: "rerank", about: "Ranks documents by a query; the same as `/v1/rerank`.", dialects: []string{dialectVLLM, dialectSim}},
	&route{path: "/v1/rerank", label: "rerank", about: "Ranks documents by a query (Jina's API).", dialects: []string{dialectVLLM, dialectSGLang, dialectSim}},
	&route{path: "/v2/rerank", label: "rerank", about: "Ranks documents by a query (Cohere's API, version 2).", dialects: []string{dialectVLLM, dialectSim}},
	&route{path: "/score", label: "score", about: "Scores pairs of texts; the same as `/v1/score`.", dialects: []string{dialectVLLM, dialectSim}},
	&route{path: "/v1/score", label: "score", about: "Scores pairs of texts.", dialects: []string{dialectVLLM, dialectSGLang, dialectSim}},
	&route{path: "/classify", label: "classify", about: "Classifies texts.", dialects: []string{dialectVLLM, dialectSim}},
	&route{path: "/pooling", label: "pooling", accepts: []string{contentBytes}, about: "Computes the vectors of a pooling model.", dialects: []string{dialectVLLM, dialectSim}},
	&route{path: "/v1/moderations", label: "moderations", about: "Judges texts.", dialects: []string{dialectSim}},
	&route{path: "/v1/audio/speech", label: "speech", streams: true, accepts: []string{"audio/", contentBytes},
		about: "Speaks a text. The answer is audio, or a stream of events.", dialects: []string{dialectSim}},
	&route{path: "/v1/audio/transcriptions", label: "transcriptions", streams: true, generates: true, form: true, accepts: []string{"text/"},
		about: "Writes down what is spoken. The form names the model.", dialects: []string{dialectVLLM, dialectSGLang, dialectSim}},
	&route{path: "/v1/audio/translations", label: "translations", streams: true, generates: true, form: true, accepts: []string{"text/"},
		about: "Writes down in English what is spoken. The form names the model.", dialects: []string{dialectVLLM, dialectSim}},
	&route{path: "/v1/images/generations", label: "images", streams: true, about: "Makes images.", dialects: []string{dialectSim}},
	&route{path: "/tokenize", label: "tokenize", light: true, about: "Splits a text or a chat into tokens.", dialects: []string{dialectVLLM, dialectSGLang, dialectSim}},
	&route{path: "/detokenize", label: "detokenize", light: true, about: "Makes a text of tokens.", dialects: []string{dialectVLLM, dialectSGLang, dialectSim}},
)

func routesByPath(routes ...*route) map[string]*route {
	out := make(map[string]*route, len(routes))
	for _, r := range routes {
		r.method = http.MethodPost
		r.spanName = r.method + " " + r.path
		out[r.path] = r
	}
	return out
}

// has tells whether one of these engines has the route; of one whose kind is not known nothing can
// be said.
func (r *route) has(engines []string) bool {
	return len(engines) == 0 || slices.ContainsFunc(engines, func(e string) bool {
		known := e == dialectVLLM || e == dialectSGLang || e == dialectOllama || e == dialectSim
		return !known || slices.Contains(r.dialects, e)
	})
}

// takes tells whether an answer may be of a type that is neither JSON nor a stream of events.
func (r *route) takes(kind string) bool {
	return slices.ContainsFunc(r.accepts, func(a string) bool {
		return kind == a || strings.HasSuffix(a, "/") && strings.HasPrefix(kind, a)
	})
}

// apiOf is the form of the errors of a path.
func apiOf(path string) openai.API {
	switch {
	case path == "/v1/messages" || strings.HasPrefix(path, "/v1/messages/"):
		return openai.Messages
	case path == routeResponses.path || strings.HasPrefix(path, routeResponses.path+"/"):
		return openai.Responses
	}
	return openai.OpenAI
}
