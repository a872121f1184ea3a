package modelscan

import "github.com/cespare/xxhash/v2"

// Head is what the gateway needs to know of a request.
type Head struct {
	// Model is the value of "model". It does not alias the body.
	Model string
	// Stream tells whether "stream" is true.
	Stream bool
	// MaxTokens is the value of "max_completion_tokens" or, where that is 0 or no number,
	// of "max_tokens", the older name of the same. It is 0 where neither says more.
	MaxTokens int
	// N is the value of "n", how many answers are wanted. It is 0 where there is no number.
	N int
	// Prompt is where the value of "messages", "prompt" or "input" starts and ends in the
	// body. Of several the last one counts, null does not. Both are 0 where there is none.
	Prompt [2]int
	// Tools tells whether "tools", "functions", "response_format" or "logprobs" is there
	// and not null or false.
	Tools bool
}

// maxNumber is the most that a number in a Head can be; more counts as so much, less
// than 0 as 0, and a fraction is cut off (it is read as a float64).
const maxNumber = 1<<31 - 1

// What is hashed of a prompt: the largest of these powers of two that it has.
const (
	prefixMost  = 1024
	prefixLeast = 256
)

// Prefix returns a hash of what the prompt begins with, for requests that are likely to
// share the first blocks of an engine's prefix cache. It is 0 where there is no prompt of
// at least 256 bytes: so little (four blocks of vLLM's 16 tokens) is computed sooner than
// it is waited for. Body must be what was scanned.
//
// 1024 bytes are about 256 tokens. That is less than most system prompts and examples
// with which an application begins each request, so all of its requests get the same
// hash; and more than what different applications have in common. Of a prompt that is
// shorter the first 512 or 256 bytes count, so that a conversation that grows changes
// its engine at most twice.
//
// It is the bytes of the JSON that count: the same text escaped in another way, or with
// other spaces, has another hash. A client does not change its way between requests.
func (h Head) Prefix(body []byte) uint64 {
	n := h.Prompt[1] - h.Prompt[0]
	if n < prefixLeast {
		return 0
	}
	size := prefixMost
	for size > n {
		size /= 2
	}
	// 0 means no prefix.
	return max(xxhash.Sum64(body[h.Prompt[0]:h.Prompt[0]+size]), 1)
}

const (
	// bytesPerToken is what English text has; JSON and code have fewer.
	bytesPerToken = 4
	// usualTokens is how long an answer is taken to be where the client does not say.
	usualTokens = 256
	// mostTokens and mostAnswers are what counts of a larger number: no engine takes
	// more, and a client must not be able to make one request look like a day of work.
	mostTokens  = 1 << 20
	mostAnswers = 128
)

// Cost estimates how much work the request is, in tokens: those of its prompt, and those
// of its answers. It is at least 1. A prompt with images in it counts by its bytes.
func (h Head) Cost() int64 {
	tokens := h.MaxTokens
	if tokens == 0 {
		tokens = usualTokens
	}
	answers := int64(min(tokens, mostTokens)) * int64(min(max(h.N, 1), mostAnswers))
	return max(int64(h.Prompt[1]-h.Prompt[0])/bytesPerToken+answers, 1)
}
