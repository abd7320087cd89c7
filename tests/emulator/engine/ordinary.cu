#include <stdio.h>
#include <assert.h>
__constant__ float table[4] = {1.f,2.f,3.f,4.f};
__device__ int counter;
__device__ __noinline__ int fib(int n){ return n<2?n:fib(n-1)+fib(n-2); }
struct P { double a; int b[3]; };
__device__ double (*fp[2])(double) = {sin, exp};
extern "C" __global__ void k1(P p, float* out, int n){
  int i=blockIdx.x*blockDim.x+threadIdx.x;
  if(i>=n) return;
  int loc[16]; for(int j=0;j<16;j++) loc[(j*7+i)&15]=j*i;
  float r=0; for(int j=0;j<16;j++) r+=loc[(i+j)&15];
  switch(i%7){case 0:r+=1;break;case 1:r*=2;break;case 2:r-=3;break;case 3:r=-r;break;case 4: r+=100;break;case 5:r+=fib(i%10);break;default:r+=pow((double)i,0.5)+p.b[2];}
  r+=table[i&3]*(float)fp[i&1](p.a);
  atomicAdd(&counter,1);
  if(i==3) printf("hello %d %f %s %c %llu %5.2e %x\n", i, (double)r, "str", 'c', 1ull<<40, 1.5, 255);
  int* q=(int*)malloc(16); q[0]=i; r+=q[0]; free(q);
  r+=tgammaf(1.5f)+erff(0.3f)+atan2f(0.5f,(float)i)+fmodf((float)i,3.f)+__popc(i)+__clz(i)+ldexpf(1.5f,3);
  long long d=(long long)i*1234567891234ll; r+=(float)(d/ (i+7)) + (float)(d%(i+3));
  unsigned m=__ballot_sync(__activemask(), i&1); r+=__popc(m);
  out[i]=r;
}
extern "C" __global__ void k2(int*x){ assert(x[threadIdx.x]!=5); }
