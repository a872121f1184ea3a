// Package pooling has the requests and answers of the routes that compute something of
// texts without an answer in words: rerank, score, classify, pooling and moderations.
// Their shapes are vLLM's; those of moderations, which vLLM lacks, are OpenAI's.
//
// Scores and labels follow from the texts' embeddings alone.
package pooling
