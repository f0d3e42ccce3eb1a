//! First steps: operations on tensors, awaited, and memory that another library may borrow.
//!
//! Run it with `cargo run --release --example hello`.

use estafette::{Access, DType, Engine, Error, Produced};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let engine = Engine::builder().workers(2).build()?;
    let x = engine.from_vec(vec![1.0_f32, 2.0, 3.0, 4.0], &[4])?;
    let y = engine.zeros(&[4], DType::F32)?;

    // The body runs when all earlier operations on `x` and `y` allow it; `run` does not wait for that.
    // `permit` awaits only while the engine's limit of operations in flight is reached.
    engine.op("double").reads([&x]).writes([&y]).permit().await?.run(|[x], [mut y]| {
        for (y, x) in y.as_mut_slice::<f32>()?.iter_mut().zip(x.as_slice::<f32>()?) {
            *y = 2.0 * x;
        }
        Ok(())
    })?;

    // A result can be used before it exists: `total` is a promise, and so is `mean`.
    let total = engine.op("total").reads([&y]).permit().await?.produce(|[y]| {
        let total: f32 = y.as_slice::<f32>()?.iter().sum();
        Ok(Produced::from_vec(vec![total], &[1])?)
    })?;
    let mean = engine.op("mean").reads([&total, &y]).permit().await?.produce(|[total, y]| {
        let mean = total.as_slice::<f32>()?[0] / y.layout().len() as f32;
        Ok(Produced::from_vec(vec![mean], &[1])?)
    })?;

    // Works on any executor, and blocks no thread. A failed operation would return its error here, with its
    // name.
    mean.ready().await?;
    println!("mean of {:?} is {:?}", y.to_vec::<f32>()?, mean.to_vec::<f32>()?);

    // Any library that uses DLPack may borrow `y`. Operations that write `y` wait until the loan is dropped.
    let loan = y.export(Access::Read).await?;
    let clear = engine.op("clear").writes([&y]).permit().await?.run(|[], [mut y]| {
        y.as_mut_slice::<f32>()?.fill(0.0);
        Ok(())
    })?;
    println!("lent out: {loan:?}; cleared: {}", clear.is_done());
    drop(loan);
    clear.await?;
    println!("returned and cleared: {:?}", y.to_vec::<f32>()?);
    Ok(())
}
